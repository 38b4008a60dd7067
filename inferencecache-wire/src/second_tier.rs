//! A store that speaks the Redis protocol, as the second tier of the self-test.
//!
//! ```text
//! connect ──> AUTH, SELECT ──> SET key payload EX 60 ──> GET key ──> DEL key
//!  └────────────── put ─────────────────────────────┘    └─ get ─┘    (best effort)
//! ```
//!
//! 1. The whole trip, connecting included, ends within [`BUDGET`], however the other side behaves.
//! 2. Each trip has a connection and a key of its own: servers that share a store do not meet in it.
//! 3. A key that could not be deleted goes away by itself.
//! 4. No secret is in an argument, a log line or an error text.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use inferencecache_core::RESERVED_TENANT;
use inferencecache_core::probe::{PAYLOAD_BYTES, ProbeTarget, T2Client, T2Error};
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisError};
use tokio::runtime::Handle;

/// Time for one trip.
pub const BUDGET: Duration = Duration::from_millis(1500);
/// Seconds after which the store forgets what was put, if it was not deleted.
pub const EXPIRY_SECONDS: u64 = 60;
/// Largest password in bytes.
pub const MAX_PASSWORD: u64 = 4096;

/// A store that speaks the Redis protocol, without TLS.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// use inferencecache_wire::second_tier::{RedisEndpoint, RedisStore};
///
/// let endpoint: RedisEndpoint = "redis.blue.svc:6379".parse().unwrap();
/// let store = RedisStore::new(endpoint, runtime.handle().clone()).password_file("/run/secrets/redis");
/// ```
#[derive(Debug, Clone)]
pub struct RedisStore {
    endpoint: RedisEndpoint,
    password_file: Option<PathBuf>,
    runtime: Handle,
}

/// Why an endpoint was refused. Does not repeat it: it may contain what should not be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// Not an address at all.
    #[error("expected host:port or redis://host:port, with /database at the end if it is not 0")]
    Malformed,
    /// A scheme or an option that is not spoken.
    #[error("only redis:// and valkey:// over TCP are supported, without TLS")]
    Unsupported,
    /// A password, which everybody who lists processes would see.
    #[error("a password belongs into a file, not into the address")]
    Password,
}

/// Where a store is: `host:port`, or `redis://[user@]host[:port][/database]`. Holds no password.
#[derive(Clone)]
pub struct RedisEndpoint(ConnectionInfo);

/// Which half of a trip is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Put,
    Get,
}

// === impl RedisStore ===

impl RedisStore {
    /// A store at `endpoint`. Nothing is connected yet.
    ///
    /// Trips run on `runtime`, which needs I/O and time, and wait for it in the thread that calls. That must not be one of
    /// its own asynchronous threads.
    #[must_use]
    pub fn new(endpoint: RedisEndpoint, runtime: Handle) -> Self {
        Self { endpoint, password_file: None, runtime }
    }

    /// Authenticates with the first line of `file`, which is read anew for each trip. Default: no authentication.
    #[must_use]
    pub fn password_file(mut self, file: impl AsRef<Path>) -> Self {
        self.password_file = Some(file.as_ref().to_owned());
        self
    }

    /// Everything needed to connect.
    fn client(&self) -> Result<Client, String> {
        let mut settings = self.endpoint.0.redis_settings().clone().set_skip_set_lib_name();
        if let Some(file) = &self.password_file {
            settings = settings.set_password(password(file)?);
        }
        Client::open(self.endpoint.0.clone().set_redis_settings(settings)).map_err(|error| explain(&error))
    }

    async fn trip(client: &Client, key: &str, payload: &[u8], half: &mut Half) -> Result<(), String> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let explain = |error| explain(&error);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.map_err(explain)?;
        let mut put = redis::cmd("SET");
        put.arg(key).arg(payload).arg("EX").arg(EXPIRY_SECONDS);
        put.query_async::<()>(&mut connection).await.map_err(explain)?;
        *half = Half::Get;
        let got = redis::cmd("GET").arg(key).query_async::<Option<Vec<u8>>>(&mut connection).await;
        // What was got decides; a key that stays behind expires.
        let _ = redis::cmd("DEL").arg(key).query_async::<()>(&mut connection).await;
        match got.map_err(explain)? {
            Some(got) if got == payload => Ok(()),
            Some(got) => Err(format!("{} other bytes came back", got.len())),
            None => Err("nothing came back".to_owned()),
        }
    }
}

impl T2Client for RedisStore {
    fn round_trip(&self, target: &ProbeTarget<'_>, payload: &[u8; PAYLOAD_BYTES]) -> Result<(), T2Error> {
        let client = self.client().map_err(T2Error::Put)?;
        let key = format!("{RESERVED_TENANT}/{}/{:016x}", target.hash(), RandomState::new().hash_one(()));
        let mut half = Half::Put;
        let outcome = self.runtime.block_on(async {
            // Made in here, because it is the runtime's clock that runs.
            let trip = tokio::time::timeout(BUDGET, Self::trip(&client, &key, payload, &mut half));
            trip.await.unwrap_or_else(|_| Err(format!("timed out after {BUDGET:?}")))
        });
        outcome.map_err(|why| match half {
            Half::Put => T2Error::Put(why),
            Half::Get => T2Error::Get(why),
        })
    }
}

// === impl RedisEndpoint ===

impl FromStr for RedisEndpoint {
    type Err = EndpointError;

    fn from_str(endpoint: &str) -> Result<Self, EndpointError> {
        let url = if endpoint.contains("://") { endpoint.to_owned() } else { format!("redis://{endpoint}") };
        // A bare word is more often a slip than a host.
        if !endpoint.contains("://") && !endpoint.contains(':') {
            return Err(EndpointError::Malformed);
        }
        let scheme = url.split("://").next().unwrap_or_default();
        if !matches!(scheme, "redis" | "valkey") {
            return Err(EndpointError::Unsupported);
        }
        let info = url.into_connection_info().map_err(|_| EndpointError::Malformed)?;
        match info.addr() {
            _ if info.redis_settings().password().is_some() => Err(EndpointError::Password),
            ConnectionAddr::Tcp(host, port) if !host.is_empty() && *port != 0 => Ok(Self(info)),
            ConnectionAddr::Tcp(..) => Err(EndpointError::Malformed),
            _ => Err(EndpointError::Unsupported),
        }
    }
}

/// As `host:port`.
impl fmt::Display for RedisEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.addr().fmt(f)
    }
}

impl fmt::Debug for RedisEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisEndpoint({self})")
    }
}

/// The first line of the file.
fn password(file: &Path) -> Result<String, String> {
    use std::io::Read as _;

    let mut text = String::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(MAX_PASSWORD).read_to_string(&mut text));
    // The path is the operator's; the kind of error says enough.
    read.map_err(|error| format!("cannot read the password file: {}", error.kind()))?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err("the password file is empty".to_owned()),
    }
}

/// The commonest fault in few words; everything else in the client's own, or the store's.
fn explain(error: &RedisError) -> String {
    if error.is_connection_refusal() { "connection refused".to_owned() } else { error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(endpoint: &str, want: Result<&str, EndpointError>) {
        let got = endpoint.parse::<RedisEndpoint>().map(|endpoint| endpoint.to_string());
        assert_eq!(got.as_deref().map_err(|why| *why), want, "{endpoint}");
    }

    #[test]
    fn endpoints_are_addresses_without_secrets() {
        use EndpointError::{Malformed, Password, Unsupported};
        check("redis:6379", Ok("redis:6379"));
        check("redis://redis", Ok("redis:6379"));
        check("10.0.0.7:7000", Ok("10.0.0.7:7000"));
        check("[::1]:7000", Ok("::1:7000"));
        check("redis://cache.blue.svc:7000/3", Ok("cache.blue.svc:7000"));
        check("redis://reader@cache", Ok("cache:6379"));
        check("valkey://cache", Ok("cache:6379"));
        for malformed in [
            "",
            "garbage",
            ":6379",
            "redis://",
            "redis:http",
            "redis:0",
            "redis:99999",
            "a b:1",
            "redis/x",
            "0.0.0.0:1",
        ] {
            check(malformed, Err(Malformed));
        }
        for unsupported in ["rediss://cache", "valkeys://cache", "unix:///run/redis.sock", "http://cache", "://"] {
            check(unsupported, Err(Unsupported));
        }
        for password in ["redis://:hunter2@cache", "redis://me:hunter2@cache", "me:hunter2@cache"] {
            check(password, Err(Password));
        }
    }

    #[test]
    fn passwords_are_the_first_line_of_a_small_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let read = |content: &[u8]| {
            std::fs::write(file.path(), content).expect("written");
            password(file.path())
        };
        assert_eq!(read(b"hunter2").as_deref(), Ok("hunter2"));
        assert_eq!(read(b"hunter2\n").as_deref(), Ok("hunter2"));
        assert_eq!(read(b" spaces stay \r\nsecond").as_deref(), Ok(" spaces stay "));
        assert_eq!(read(b""), Err("the password file is empty".to_owned()));
        assert_eq!(read(b"\nx"), Err("the password file is empty".to_owned()));
        let why = read(b"\xff\xfe").expect_err("no text");
        assert!(!why.contains('\u{fffd}'), "{why}");
        let missing = password(&file.path().join("missing")).expect_err("no file");
        assert!(missing.starts_with("cannot read the password file: "), "{missing}");
    }
}
