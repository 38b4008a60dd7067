//! Writes the CustomResourceDefinitions into a folder: `cargo run -p inferencecache-kube --features testkit --example crdgen
//! inferencecache-kube/deploy/crds`.

use std::path::PathBuf;

use inferencecache_kube::testkit::manifests;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).ok_or("usage: crdgen FOLDER")?;
    for (name, content) in manifests::crd_files()? {
        std::fs::write(folder.join(&name), content)?;
        println!("{}", folder.join(name).display());
    }
    Ok(())
}
