//! Turns the published `.proto` file into the committed Rust code and the descriptor set that reflection serves.
//!
//! ```text
//! proto/…/inferencecache.proto ──protox──> FileDescriptorSet ──tonic──> src/generated/inferencecache.v1alpha1.rs
//!                                                            └──────────> src/generated/descriptor.bin
//! ```
//!
//! Shared by the test that compares and the example that rewrites. Needs no `protoc`.

use std::path::{Path, PathBuf};

use protox::prost::Message as _;

/// File names below `src/generated`, and what belongs into them.
pub(crate) type Generated = Vec<(&'static str, Vec<u8>)>;

const CODE: &str = "inferencecache.v1alpha1.rs";
const DESCRIPTOR: &str = "descriptor.bin";

/// Where the committed files live.
pub(crate) fn committed_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated")
}

/// Compiles the contract anew. `scratch` is a directory for intermediate files.
pub(crate) fn generate(scratch: &Path) -> Generated {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let mut compiler = protox::Compiler::new([root]).expect("the proto directory");
    compiler.include_source_info(true).include_imports(true);
    compiler.open_file("inferencecache/v1alpha1/inferencecache.proto").expect("the contract compiles");
    let files = compiler.file_descriptor_set();

    tonic_prost_build::configure()
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .client_mod_attribute(".", "#[cfg(feature = \"client\")]")
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .out_dir(scratch)
        .compile_fds(files.clone())
        .expect("code is generated");
    let code = std::fs::read(scratch.join(CODE)).expect("the generated file");

    let mut published = files;
    for file in &mut published.file {
        file.source_code_info = None; // reflection serves shapes, not comments
    }
    vec![(CODE, code), (DESCRIPTOR, published.encode_to_vec())]
}
