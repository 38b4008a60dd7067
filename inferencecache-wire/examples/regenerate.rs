//! Rewrites `src/generated` from the published contract: `cargo run -p inferencecache-wire --example regenerate`.

#[path = "../tests/common/codegen.rs"]
mod codegen;

fn main() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    for (name, content) in codegen::generate(scratch.path()) {
        let path = codegen::committed_dir().join(name);
        std::fs::write(&path, content).expect("src/generated is writable");
        println!("{}", path.display());
    }
}
