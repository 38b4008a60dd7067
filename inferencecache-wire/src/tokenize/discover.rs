//! Which directories are models, and which of their files may be read.
//!
//! 1. Nothing outside the root is read: links to directories are not followed, and a link to a file counts only when it ends
//!    inside.
//! 2. A model is a leaf: what lies below it is not looked at. The root itself is none.
//! 3. The walk is bounded in depth and in entries, and its result does not depend on the order of the file system.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Deepest directory looked at, counted from the root.
const MAX_DEPTH: usize = 16;
/// Most directory entries looked at.
const MAX_ENTRIES: usize = 100_000;
/// Most models.
const MAX_MODELS: usize = 1024;

/// Suffix of a vocabulary that is not in `tokenizer.json`.
pub(super) const TIKTOKEN: &str = ".tiktoken";
/// Name of a tokenizer with everything in it.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// Whether `id` can be a model's: relative, with `/` between its segments, each a plain name.
///
/// Ids are only ever compared, never joined to a path; this keeps everything else out even of the comparison.
#[must_use]
pub fn is_safe_model_id(id: &str) -> bool {
    let drive = matches!(id.as_bytes(), [letter, b':', b'/', ..] if letter.is_ascii_alphabetic());
    !drive && !id.contains('\\') && id.split('/').all(|segment| !matches!(segment, "" | "." | ".."))
}

/// What the walk found.
#[derive(Debug, Default)]
pub(super) struct Discovery {
    /// In the order of their ids.
    pub(super) models: Vec<Candidate>,
    pub(super) skipped: Vec<Skipped>,
}

/// A directory that is a model, not yet loaded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its path from the root, with `/` between segments.
    pub(super) id: String,
    /// Its readable files by name, where they really are.
    pub(super) files: BTreeMap<String, PathBuf>,
}

/// Something below the root that was passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Path from the root.
    pub path: String,
    /// Why.
    pub reason: SkipReason,
}

/// Why something was passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkipReason {
    /// The operating system did not let it be read.
    Unreadable,
    /// Its path can be no model id.
    UnsafeId,
    /// It is a link to a directory.
    DirectoryLink,
    /// It is a link to a file outside of the root, or to nothing.
    LeadsOutside,
    /// It lies deeper than 16 directories.
    TooDeep,
    /// There are more than 1024 models or 100 000 directory entries.
    TooMany,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreadable => "cannot be read",
            Self::UnsafeId => "its path can be no model id",
            Self::DirectoryLink => "links to directories are not followed",
            Self::LeadsOutside => "links to files must end inside the directory",
            Self::TooDeep => "too deep",
            Self::TooMany => "too many models or files",
        })
    }
}

/// Walks `root`.
///
/// # Errors
/// When the root itself cannot be read.
pub(super) fn discover(root: &Path) -> io::Result<Discovery> {
    let root = root.canonicalize()?;
    let entries = names(&root)?;
    let mut walk = Walk { root: &root, entries: 0, found: Discovery::default() };
    walk.descend(&root, "", 1, entries);
    walk.found.models.sort_unstable_by(|a, b| a.id.cmp(&b.id));
    Ok(walk.found)
}

struct Walk<'a> {
    root: &'a Path,
    entries: usize,
    found: Discovery,
}

impl Walk<'_> {
    /// Looks at the directories among the `entries` of `dir`.
    fn descend(&mut self, dir: &Path, prefix: &str, depth: usize, entries: Vec<fs::DirEntry>) {
        for entry in entries {
            let Ok(name) = entry.file_name().into_string() else {
                self.skip(format!("{prefix}{}", entry.file_name().display()), SkipReason::UnsafeId);
                continue;
            };
            // Volume mounts keep dated copies of everything under such names.
            if name.starts_with("..") {
                continue;
            }
            let path = dir.join(&name);
            let id = format!("{prefix}{name}");
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.visit(&path, id, depth),
                Ok(kind) if kind.is_symlink() && path.is_dir() => self.skip(id, SkipReason::DirectoryLink),
                Ok(_) => {}
                Err(_) => self.skip(id, SkipReason::Unreadable),
            }
        }
    }

    /// Looks at one directory: it is a model, or it is descended into.
    fn visit(&mut self, dir: &Path, id: String, depth: usize) {
        let Ok(entries) = names(dir) else {
            return self.skip(id, SkipReason::Unreadable);
        };
        self.entries = self.entries.saturating_add(entries.len());
        if self.entries > MAX_ENTRIES {
            return self.skip(id, SkipReason::TooMany);
        }
        let files = self.files(&id, dir, &entries);
        if !files.keys().any(|name| name == TOKENIZER || name.ends_with(TIKTOKEN)) {
            if depth == MAX_DEPTH {
                return self.skip(id, SkipReason::TooDeep);
            }
            return self.descend(dir, &format!("{id}/"), depth + 1, entries);
        }
        if !is_safe_model_id(&id) {
            self.skip(id, SkipReason::UnsafeId);
        } else if self.found.models.len() == MAX_MODELS {
            self.skip(id, SkipReason::TooMany);
        } else {
            self.found.models.push(Candidate { id, files });
        }
    }

    /// The files of a directory that mean something in a model, and that are inside the root.
    fn files(&mut self, id: &str, dir: &Path, entries: &[fs::DirEntry]) -> BTreeMap<String, PathBuf> {
        let mut files = BTreeMap::new();
        for entry in entries {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let means = matches!(&*name, TOKENIZER | "tokenizer_config.json" | "chat_template.json")
                || name.ends_with(TIKTOKEN)
                || name.ends_with(".jinja");
            if !means || entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            match dir.join(&name).canonicalize() {
                Ok(real) if real.starts_with(self.root) && real.is_file() => {
                    files.insert(name, real);
                }
                _ => self.skip(format!("{id}/{name}"), SkipReason::LeadsOutside),
            }
        }
        files
    }

    fn skip(&mut self, path: String, reason: SkipReason) {
        self.found.skipped.push(Skipped { path, reason });
    }
}

/// The entries of a directory by name; those that cannot be read are left out.
fn names(dir: &Path) -> io::Result<Vec<fs::DirEntry>> {
    let mut entries: Vec<_> = fs::read_dir(dir)?.take(MAX_ENTRIES).filter_map(Result::ok).collect();
    entries.sort_unstable_by_key(fs::DirEntry::file_name);
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        root
    }

    fn ids(root: &Path) -> Vec<String> {
        discover(root).unwrap().models.into_iter().map(|model| model.id).collect()
    }

    #[test]
    fn unsafe_ids_are_told_from_safe_ones() {
        // fingerprint:39
        for id in [
            "",
            ".",
            "..",
            "../secret",
            "models/../../secret",
            "/absolute/model",
            "Qwen//model",
            "Qwen/./model",
            r"Qwen\model",
            "C:/models/qwen",
            r"C:\models\qwen",
            "gpt2/",
        ] {
            assert!(!is_safe_model_id(id), "{id:?}");
        }
        // fingerprint:40
        for id in ["gpt2", "Qwen/Qwen2.5-0.5B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "a/..b/c", "1:/x"] {
            assert!(is_safe_model_id(id), "{id:?}");
        }
    }

    #[test]
    fn models_are_leaves_below_the_root() {
        // fingerprint:38
        let root = tree(&[
            "tokenizer.json",
            "Qwen/Qwen2.5-0.5B-Instruct/tokenizer.json",
            "Qwen/Qwen2.5-0.5B-Instruct/nested/tokenizer.json",
            "gpt2/tokenizer.json",
            "not-a-model/config.json",
            "openai/cl100k/base.tiktoken",
            "..2025_01_01/gpt2/tokenizer.json",
        ]);
        fs::create_dir_all(root.path().join("odd/tokenizer.json")).unwrap();
        assert_eq!(ids(root.path()), ["Qwen/Qwen2.5-0.5B-Instruct", "gpt2", "openai/cl100k"]);
        assert!(discover(&root.path().join("none")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_inside() {
        use std::os::unix::fs::symlink;
        let outside = tree(&["tokenizer.json", "model/tokenizer.json"]);
        let root = tree(&["blobs/abc", "real/tokenizer.json", "linked/README", "stray/README", "broken/README"]);
        let at = |path: &str| root.path().join(path);
        symlink("../blobs/abc", at("linked/tokenizer.json")).unwrap();
        symlink("../blobs/none", at("broken/tokenizer.json")).unwrap();
        symlink(outside.path().join("tokenizer.json"), at("stray/tokenizer.json")).unwrap();
        symlink(outside.path().join("model"), at("model")).unwrap();
        symlink("real", at("alias")).unwrap();
        let found = discover(root.path()).unwrap();
        assert_eq!(ids(root.path()), ["linked", "real"]);
        assert_eq!(found.models[0].files["tokenizer.json"], at("blobs/abc").canonicalize().unwrap());
        let skipped: Vec<_> = found.skipped.iter().map(|skip| (&*skip.path, skip.reason)).collect();
        assert_eq!(
            skipped,
            [
                ("alias", SkipReason::DirectoryLink),
                ("broken/tokenizer.json", SkipReason::LeadsOutside),
                ("model", SkipReason::DirectoryLink),
                ("stray/tokenizer.json", SkipReason::LeadsOutside),
            ]
        );
    }

    #[cfg(unix)]
    #[test]
    fn names_that_can_be_no_id_are_skipped() {
        let root = tree(&[r"back\slash/tokenizer.json", "C:/x/tokenizer.json", "fine/tokenizer.json"]);
        let found = discover(root.path()).unwrap();
        assert_eq!(ids(root.path()), ["fine"]);
        assert_eq!(found.skipped.len(), 2);
        assert!(found.skipped.iter().all(|skip| skip.reason == SkipReason::UnsafeId));
    }

    #[test]
    fn the_walk_is_bounded() {
        let deep = "d/".repeat(MAX_DEPTH);
        let root = tree(&[&format!("{deep}m/tokenizer.json"), &format!("{}m/tokenizer.json", &deep[2..])]);
        let found = discover(root.path()).unwrap();
        assert_eq!(found.models.len(), 1);
        assert_eq!(found.skipped.iter().map(|skip| skip.reason).collect::<Vec<_>>(), [SkipReason::TooDeep]);
    }
}
