//! Where the programs of a control plane are: `KUBEBUILDER_ASSETS`, else the cache, which cluster.sh fills.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::cluster::{ClusterError, broken};

const SCRIPT: &str = include_str!("cluster.sh");
/// Parts that an API server needs, as cluster.sh names them.
pub(super) const API_SERVER: [&str; 3] = ["etcd", "apiserver", "kubectl"];
/// Parts that nodes need beside them.
pub(super) const NODES: [&str; 3] = ["controller-manager", "scheduler", "kwok"];

/// Folders with programs; the first that has one gives it.
#[derive(Debug)]
pub(super) struct Binaries(Vec<PathBuf>);

impl Binaries {
    /// Finds those parts, and builds what is missing.
    pub(super) fn find(parts: &[&str]) -> Result<Self, ClusterError> {
        let assets = std::env::var_os("KUBEBUILDER_ASSETS").filter(|assets| !assets.is_empty());
        let mut found = Self(assets.map(std::path::absolute).transpose()?.into_iter().collect());
        // Assets are without controllers as a rule.
        let missing: Vec<&str> = parts.iter().copied().filter(|part| found.held(&name(part)).is_none()).collect();
        if !missing.is_empty() {
            found.0.push(cached(&missing)?);
        }
        Ok(found)
    }

    /// A program; its bare name where no folder has it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.held(name).unwrap_or_else(|| PathBuf::from(name))
    }

    fn held(&self, name: &str) -> Option<PathBuf> {
        self.0.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
    }
}

/// The program of a part.
fn name(part: &str) -> String {
    match part {
        "apiserver" | "controller-manager" | "scheduler" => format!("kube-{part}"),
        part => part.to_owned(),
    }
}

/// The cache, with those parts in it.
fn cached(parts: &[&str]) -> Result<PathBuf, ClusterError> {
    let mut shell =
        Command::new("bash").args(["-s", "--"]).args(parts).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = shell.stdin.take() {
        stdin.write_all(SCRIPT.as_bytes())?;
    }
    let built = shell.wait_with_output()?;
    match built.status.code() {
        Some(0) => Ok(PathBuf::from(String::from_utf8_lossy(&built.stdout).trim())),
        Some(3) => Err(ClusterError::NoTools),
        code => Err(broken("cluster.sh", format!("ended with {code:?}; run `make cluster`"))),
    }
}
