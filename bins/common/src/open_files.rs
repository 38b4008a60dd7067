//! The system's limit of open files, which is also one of connections.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit of this process as far as it may do so itself. Gives what then holds; `None` is no limit.
#[must_use]
pub fn raise() -> Option<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return limit.current;
    }
    let before = limit.current;
    limit.current = limit.maximum;
    // Some systems refuse what they offer; then the old one stays.
    if setrlimit(Resource::Nofile, limit).is_ok() { limit.current } else { before }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_raised_once_and_for_all() {
        let raised = super::raise();
        assert_eq!(super::raise(), raised);
        assert!(raised.is_none_or(|files| files > 0));
    }
}
