//! Test kit: the naive oracle and friends.
