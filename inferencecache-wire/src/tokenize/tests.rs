//! What takes an encoder that misbehaves; everything else is tested from outside, in `tests/tokenize.rs`.

use inferencecache_core::time::ManualClock;

use super::config::Config;
use super::model::Encoder;
use super::template::ChatTemplate;
use super::*;

/// Ids are the text's bytes; some texts are bad for it.
struct Fragile;

impl Encoder for Fragile {
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizeError> {
        assert!(!text.contains("panic"), "as asked");
        if text.contains("fail") {
            return Err(TokenizeError::Failed);
        }
        Ok(text.bytes().map(u32::from).chain(add_special.then_some(0)).collect())
    }
}

fn models() -> Models {
    let template = ChatTemplate::compile("<{{ messages[0].content }}>", &Config::default(), 0).unwrap();
    let plain = Model::of(Box::new(Fragile), None);
    let chat = Model::of(Box::new(Fragile), Some(template));
    Models {
        models: HashMap::from([("chat".to_owned(), chat), ("plain".to_owned(), plain)]),
        clock: Arc::new(ManualClock::at(0)),
        report: LoadReport::default(),
    }
}

// fingerprint:46
#[test]
fn a_panic_fails_one_call_and_no_other() {
    let models = models();
    assert_eq!(models.encode_chat("chat", "panic"), Err(TokenizeError::Failed));
    assert_eq!(models.encode_plain("chat", "panic"), Err(TokenizeError::Failed));
    assert_eq!(models.encode_chat("chat", "fail"), Err(TokenizeError::Failed));
    assert_eq!(models.encode_chat("chat", "a"), Ok(vec![60, 97, 62]));
}

#[test]
fn special_tokens_are_added_to_plain_text_alone() {
    let models = models();
    assert_eq!(models.encode_plain("plain", "a"), Ok(vec![97, 0]));
    assert_eq!(models.encode_chat("plain", "a"), Err(TokenizeError::Failed), "there is no template");
}

// fingerprint:42
#[test]
fn a_nul_is_for_chats_alone() {
    let models = models();
    assert_eq!(models.encode_plain("chat", "a\0"), Err(TokenizeError::Failed));
    assert_eq!(models.encode_chat("chat", "a\0"), Ok(vec![60, 97, 0, 62]));
}

#[test]
fn what_is_loaded_on_many_threads_keeps_its_id() {
    let root = tempfile::tempdir().unwrap();
    for id in 0..40 {
        let dir = root.path().join(format!("m{id:02}"));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("v.tiktoken"), format!("YQ== {id}")).unwrap();
    }
    let models = Models::load(root.path());
    assert!((0..40).all(|id| models.encode_plain(&format!("m{id:02}"), "a") == Ok(vec![id])));
    assert!(models.report().loaded.is_sorted_by(|a, b| a.model < b.model));
    assert_eq!((models.len(), models.report().found()), (40, 40));
}
