//! What the process weighs.

/// Bytes of resident memory.
pub(crate) fn resident_bytes() -> u64 {
    let page = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = page.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("statm");
    pages * 4096
}
