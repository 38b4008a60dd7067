//! The committed code is what the contract compiles to.

#[path = "common/codegen.rs"]
mod codegen;

#[test]
fn committed_code_is_fresh() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    for (name, wanted) in codegen::generate(scratch.path()) {
        let committed = std::fs::read(codegen::committed_dir().join(name)).unwrap_or_default();
        assert!(
            committed == wanted,
            "src/generated/{name} is stale; rewrite it with: cargo run -p inferencecache-wire --example regenerate"
        );
    }
}
