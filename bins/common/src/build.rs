//! Who this build is. Both values are fixed when compiled, through `INFERENCECACHE_VERSION` and `INFERENCECACHE_COMMIT`.

/// Released version, or `dev`.
pub const VERSION: &str = match option_env!("INFERENCECACHE_VERSION") {
    Some(version) => version,
    None => "dev",
};

/// Commit built from, or `unknown`.
pub const COMMIT: &str = match option_env!("INFERENCECACHE_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};
