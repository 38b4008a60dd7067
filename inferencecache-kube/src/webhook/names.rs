//! Paths and names of the admission endpoints, spelled once.

/// Path of the endpoint that links Pods.
pub const POD_PATH: &str = "/mutate--v1-pod";
/// Name of the linker's entry in the configuration.
pub const POD_WEBHOOK: &str = "mpod.inferencecache.io";

/// `webhooks.md` names six endpoints: a defaulting and a validating one per kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// CacheBackend.
    Backend,
    /// CachePolicy.
    Policy,
    /// CacheTenant.
    Tenant,
}

impl Kind {
    /// All of them, in the order of the configurations.
    pub const ALL: [Self; 3] = [Self::Backend, Self::Policy, Self::Tenant];

    /// As objects spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Backend => "CacheBackend",
            Self::Policy => "CachePolicy",
            Self::Tenant => "CacheTenant",
        }
    }

    /// In lower case.
    #[must_use]
    pub fn singular(self) -> &'static str {
        match self {
            Self::Backend => "cachebackend",
            Self::Policy => "cachepolicy",
            Self::Tenant => "cachetenant",
        }
    }

    /// As URLs of the API spell it.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::Backend => "cachebackends",
            Self::Policy => "cachepolicies",
            Self::Tenant => "cachetenants",
        }
    }

    /// Path of the endpoint that fills in what is missing.
    #[must_use]
    pub fn mutate_path(self) -> String {
        format!("/mutate-inferencecache-io-v1alpha1-{}", self.singular())
    }

    /// Path of the endpoint that judges.
    #[must_use]
    pub fn validate_path(self) -> String {
        format!("/validate-inferencecache-io-v1alpha1-{}", self.singular())
    }
}
