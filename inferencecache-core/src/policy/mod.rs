//! To be written.
/// Policy.
#[derive(Debug, Default)]
pub struct PolicyStore;
