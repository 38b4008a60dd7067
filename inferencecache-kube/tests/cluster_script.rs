//! cluster.sh with a Go that builds nothing: what it does twice, at the same time, interrupted and without network.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/testkit/cluster.sh");
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers as Go would. A build waits while the file `hold` exists, with half of its output written.
const GO: &str = r#"#!/bin/bash
here=$(dirname "$0")/..
echo "$*" >>"$here/asked"
case $1 in
mod)
  if [ -e "$here/offline" ]; then printf '{"Error": "no network"}\n'; exit 1; fi
  printf 'go 1.26.0\n\ngodebug default=go1.26\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n' >"$here/source.mod"
  printf '{\n\t"GoMod": "%s/source.mod",\n\t"Dir": "x"\n}\n' "$here" ;;
build)
  while [ "$1" != -o ]; do shift; done
  printf half >"$2"
  while [ -e "$here/hold" ]; do sleep 0.02; done
  printf '#!/bin/sh\necho %s\n' "$(cat "$here/version")" >"$2"
  chmod +x "$2" ;;
esac
"#;

/// A machine with nothing but what the script uses, and an empty cache.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(TempDir::new().expect("a folder"));
        let tools = machine.at("tools");
        std::fs::create_dir(&tools).expect("a folder");
        for tool in
            ["bash", "cat", "chmod", "dirname", "flock", "grep", "head", "ln", "mkdir", "mv", "rm", "sed", "sleep"]
        {
            let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().expect("sh");
            let path = String::from_utf8(found.stdout).expect("UTF-8");
            if !path.trim().is_empty() {
                std::os::unix::fs::symlink(path.trim(), tools.join(tool)).expect("a link");
            }
        }
        machine.says("v1.36.3 v0.8.0");
        program(&tools.join("go"), GO);
        machine
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// What built programs call themselves.
    fn says(&self, version: &str) {
        std::fs::write(self.at("version"), version).expect("a version");
    }

    fn touch(&self, name: &str) {
        std::fs::write(self.at(name), "").expect("a file");
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.at(name)).expect("it was there");
    }

    fn start(&self, parts: &[&str]) -> Child {
        Command::new(self.at("tools/bash"))
            .arg(SCRIPT)
            .args(parts)
            .env_clear()
            .env("PATH", self.at("tools"))
            .env("XDG_CACHE_HOME", self.at("cache"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("bash")
    }

    fn run(&self, parts: &[&str]) -> (Option<i32>, String, String) {
        told(self.start(parts).wait_with_output().expect("an end"))
    }

    fn binaries(&self) -> PathBuf {
        self.at("cache/inferencecache-test/k8s-1.36.3")
    }

    /// Names in the folder of the binaries, sorted.
    fn held(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.binaries()).into_iter().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// How often Go was asked for that.
    fn asked(&self, what: &str) -> usize {
        let asked = std::fs::read_to_string(self.at("asked")).unwrap_or_default();
        asked.lines().filter(|line| line.starts_with(what)).count()
    }
}

fn program(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, text).expect("a program");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a program");
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn told(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout).trim().to_owned(), text(output.stderr))
}

#[test]
fn what_is_there_is_not_built_again_and_needs_neither_go_nor_a_turn() {
    let machine = Machine::new();
    let (code, folder, said) = machine.run(&["scheduler", "kwok"]);
    assert_eq!((code, PathBuf::from(folder)), (Some(0), machine.binaries()), "{said}");
    for line in ["fetching the module k8s.io/kubernetes v1.36.3", "building kube-scheduler", "(v1.36.3)", "(v0.8.0)"] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let module = std::fs::read_to_string(machine.at("cache/inferencecache-test/modules/kubernetes-1.36.3/go.mod"));
    assert!(module.expect("a module").contains("replace k8s.io/api => k8s.io/api v0.36.3\n"));
    machine.remove("tools/go");
    let lock = machine.at("cache/inferencecache-test/lock");
    let flock = |arguments: &[&str]| {
        let mut flock = Command::new("flock");
        flock.arg(arguments[0]).arg(&lock).args(&arguments[1..]).stdin(Stdio::piped());
        flock
    };
    // It holds the lock until its input closes.
    let mut holder = flock(&["--exclusive", "cat"]).spawn().expect("flock");
    until("it is locked", || !flock(&["--nonblock", "true"]).status().expect("flock").success());
    let (code, _, said) = machine.run(&["kwok", "scheduler"]);
    drop(holder.stdin.take());
    holder.wait().expect("a child of ours");
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert_eq!(machine.asked("build"), 2);
}

#[test]
fn two_at_once_build_once() {
    let machine = Machine::new();
    machine.touch("hold");
    let first = machine.start(&["kwok"]);
    until("the first builds", || machine.asked("build") == 1);
    let second = machine.start(&["kwok"]);
    machine.remove("hold");
    for caller in [first, second] {
        let (code, folder, said) = told(caller.wait_with_output().expect("an end"));
        assert_eq!((code, PathBuf::from(folder)), (Some(0), machine.binaries()), "{said}");
    }
    assert_eq!(machine.asked("build"), 1);
}

#[test]
fn a_killed_build_leaves_nothing_that_looks_like_a_program() {
    for signal in ["-KILL", "-TERM"] {
        let machine = Machine::new();
        machine.touch("hold");
        let mut caller = machine.start(&["kwok"]);
        until("it builds", || machine.held().iter().any(|name| name.starts_with(".kwok")));
        let sent = Command::new("kill").args([signal, &caller.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
        assert_ne!(caller.wait().expect("an end").code(), Some(0), "{signal}");
        assert!(!machine.held().contains(&"kwok".to_owned()), "{signal}");
        // Go may outlive whoever started it.
        machine.remove("hold");
        let (code, _, said) = machine.run(&["kwok"]);
        assert_eq!(code, Some(0), "{signal}: {said}");
        assert_eq!(machine.held(), ["kwok"], "{signal}");
    }
}

#[test]
fn without_network_it_says_so_and_the_next_call_starts_over() {
    let machine = Machine::new();
    machine.touch("offline");
    let (code, _, said) = machine.run(&["kubectl"]);
    assert!(code == Some(1) && said.contains("no network") && said.contains("cannot be fetched"), "{code:?}: {said}");
    assert_eq!(machine.asked("build"), 0);
    machine.remove("offline");
    assert_eq!(machine.run(&["kubectl"]).0, Some(0));
}

#[test]
fn a_program_that_does_not_say_which_version_it_is_is_not_taken() {
    let machine = Machine::new();
    machine.says("v0.0.0");
    let (code, _, said) = machine.run(&["scheduler"]);
    assert!(code == Some(1) && said.contains("does not call itself v1.36.3"), "{code:?}: {said}");
    assert_eq!(machine.held(), [""; 0]);
}

#[test]
fn without_go_it_says_what_is_missing() {
    let machine = Machine::new();
    machine.remove("tools/go");
    let (code, _, said) = machine.run(&["controller-manager"]);
    assert!(code == Some(3) && said.contains("kube-controller-manager is missing"), "{code:?}: {said}");
    assert_eq!(machine.run(&["no-such-part"]).0, Some(2));
    // A system's etcd needs no Go, and is built where there is none.
    program(&machine.at("tools/etcd"), "#!/bin/sh\n");
    assert_eq!(machine.run(&["etcd"]).0, Some(0));
    assert_eq!(machine.held(), ["etcd"]);
}
