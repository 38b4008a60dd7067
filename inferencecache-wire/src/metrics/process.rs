//! The `process_*` families, read from `/proc` at each scrape. Elsewhere than on Linux they stay at 0.

use std::fs;

use prometheus::{Counter, Gauge, IntGauge, Registry};

use super::registered;

/// Ticks per second in `/proc/*/stat`; the kernel's interface fixes it on every architecture in use.
const TICKS: f64 = 100.0;

pub(super) struct Process {
    cpu: Counter,
    open_fds: IntGauge,
    max_fds: IntGauge,
    virtual_bytes: IntGauge,
    resident_bytes: IntGauge,
    threads: IntGauge,
    start: Gauge,
}

impl Process {
    pub(super) fn registered_in(registry: &Registry) -> Self {
        let gauge = |name, help| registered(registry, IntGauge::new(name, help));
        let process = Self {
            cpu: registered(registry, Counter::new("process_cpu_seconds_total", "User and system CPU time spent.")),
            open_fds: gauge("process_open_fds", "Open file descriptors."),
            max_fds: gauge("process_max_fds", "Most open file descriptors allowed."),
            virtual_bytes: gauge("process_virtual_memory_bytes", "Virtual memory size."),
            resident_bytes: gauge("process_resident_memory_bytes", "Resident memory size."),
            threads: gauge("process_threads", "Threads."),
            start: registered(
                registry,
                Gauge::new("process_start_time_seconds", "When the process started, in Unix seconds."),
            ),
        };
        process.start.set(started().unwrap_or_default());
        process
    }

    /// Reads the figures anew; one that cannot be read keeps its last value.
    pub(super) fn refresh(&mut self) {
        if let Some(now) = cpu_seconds() {
            // A counter only takes increments.
            let before = self.cpu.get();
            self.cpu.inc_by((now - before).max(0.0));
        }
        if let Ok(fds) = fs::read_dir("/proc/self/fd") {
            self.open_fds.set(i64::try_from(fds.count()).unwrap_or(i64::MAX));
        }
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        set(&self.max_fds, field(&limits, "Max open files", 0), 1);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        set(&self.virtual_bytes, field(&status, "VmSize:", 0), 1024);
        set(&self.resident_bytes, field(&status, "VmRSS:", 0), 1024);
        set(&self.threads, field(&status, "Threads:", 0), 1);
    }
}

fn set(gauge: &IntGauge, value: Option<i64>, unit: i64) {
    if let Some(value) = value {
        gauge.set(value.saturating_mul(unit));
    }
}

/// The `nth` word after `name` on the line that starts with it.
fn field(text: &str, name: &str, nth: usize) -> Option<i64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().nth(nth)?.parse().ok()
}

/// The `nth` field of `/proc/self/stat`, counted as its manual does, from 1.
fn stat(nth: usize) -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name in parentheses, which may contain anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split_whitespace().nth(nth - 3)?.parse().ok()
}

fn cpu_seconds() -> Option<f64> {
    Some((stat(14)? + stat(15)?) / TICKS)
}

fn started() -> Option<f64> {
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot + stat(22)? / TICKS)
}
