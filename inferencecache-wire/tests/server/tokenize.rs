//! Models from real directories, with tokenizers made here.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::models::*;
use inferencecache_core::fingerprint;
use inferencecache_core::time::{Clock as _, ManualClock};
use inferencecache_core::tokenizer::{TokenizeError, Tokenizer as _};
use inferencecache_wire::tokenize::{Models, SkipReason};
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::{SplitDelimiterBehavior, Tokenizer};

fn loaded(models: &Models) -> Vec<&str> {
    models.report().loaded.iter().map(|model| &*model.model).collect()
}

#[track_caller]
fn must_fit_the_vector(models: &Models, id: &str) {
    let ids = models.encode_plain(id, "hello world").unwrap();
    let words = &ids[ids.len() - 2..];
    assert_eq!(words, [HELLO, WORLD]);
    let (mut keys, mut counts) = (Vec::new(), Vec::new());
    fingerprint::chain(words, NonZeroU32::new(2).unwrap(), &mut keys, &mut counts);
    assert_eq!(keys, [0x238f_33c0_7c1d_869e_u64.to_be_bytes()]);
}

// fingerprint:41
#[test]
fn plain_text_is_encoded_with_the_tokens_around_it() {
    let models = Dir::new().toy("m").load();
    assert_eq!(models.encode_plain("m", "hello world"), Ok(vec![BOS, HELLO, WORLD]), "neither cut nor padded");
    must_fit_the_vector(&models, "m");
}

// fingerprint:41, with artefacts of a real model
#[test]
#[ignore = "needs the tokenizer of Qwen2.5, which is not shipped: TOKENIZER_DIR names a folder with tokenizer.json"]
#[expect(clippy::disallowed_methods, reason = "a test may be told where the artefacts are")]
fn real_artefacts_fit_the_vector() {
    let Ok(dir) = std::env::var("TOKENIZER_DIR") else {
        eprintln!("skipped: TOKENIZER_DIR is not set");
        return;
    };
    let dir = Path::new(&dir).canonicalize().unwrap();
    let models = Models::load(dir.parent().unwrap());
    let id = dir.file_name().unwrap().to_str().unwrap();
    must_fit_the_vector(&models, id);
    let chat = models.encode_chat(id, "hello world").unwrap();
    assert!(chat.windows(2).any(|pair| pair == [HELLO, WORLD]), "{chat:?}");
}

// fingerprint:45
#[test]
fn the_template_writes_the_special_tokens_and_the_encoder_adds_none() {
    let models = Dir::new().chat("m").load();
    assert_eq!(models.encode_chat("m", "hello world"), Ok(vec![BOS, HELLO, WORLD, GO]));
    assert!(models.report().loaded[0].chat);
}

// fingerprint:42
#[test]
fn a_nul_is_encoded_in_a_chat_and_refused_in_plain_text() {
    let models = Dir::new().chat("m").load();
    assert_eq!(models.encode_chat("m", "hello \0 world"), Ok(vec![BOS, HELLO, 0, WORLD, GO]));
    assert_eq!(models.encode_plain("m", "hello \0"), Err(TokenizeError::Failed));
}

// fingerprint:36-37
#[test]
fn without_models_nothing_is_available() {
    let empty = Dir::new();
    for models in [empty.load(), Models::load(&empty.0.path().join("none"))] {
        assert!(models.is_empty());
        assert_eq!(models.encode_chat("m", "hello"), Err(TokenizeError::Unavailable));
        assert_eq!(models.encode_plain("m", "hello"), Err(TokenizeError::Unavailable));
    }
    assert_eq!(empty.load().report().unreadable, None);
    assert!(Models::load(&empty.0.path().join("none")).report().unreadable.is_some());
}

// fingerprint:38
#[test]
fn ids_are_paths_below_the_root() {
    let models = Dir::new()
        .chat("Qwen/Qwen2.5-0.5B-Instruct")
        .toy("gpt2")
        .with("not-a-model/README", "")
        .toy("gpt2/nested")
        .load();
    assert_eq!(loaded(&models), ["Qwen/Qwen2.5-0.5B-Instruct", "gpt2"]);
    assert_eq!(models.report().skipped, []);
    models.encode_chat("Qwen/Qwen2.5-0.5B-Instruct", "hello").unwrap();
}

// fingerprint:39
#[test]
fn unsafe_ids_are_refused_before_anything_is_looked_up() {
    let dir = Dir::new().chat("m").chat("models/qwen");
    let models = dir.load();
    let before = format!("{models:?}");
    let absolute = dir.0.path().join("m");
    for id in [
        "",
        ".",
        "..",
        "../secret",
        "models/../../secret",
        "/absolute/model",
        absolute.to_str().unwrap(),
        "Qwen//model",
        "Qwen/./model",
        r"Qwen\model",
        "C:/models/qwen",
        r"C:\models\qwen",
        "./m",
        "m/",
    ] {
        assert_eq!(models.encode_chat(id, "hello"), Err(TokenizeError::UnsafeModelId), "{id:?}");
        assert_eq!(models.encode_plain(id, "hello"), Err(TokenizeError::UnsafeModelId), "{id:?}");
    }
    assert_eq!(models.encode_chat("models", "hello"), Err(TokenizeError::Unavailable));
    assert_eq!(format!("{models:?}"), before);
}

// fingerprint:43
#[test]
fn a_broken_model_is_left_out_and_said_why() {
    let models = Dir::new()
        .chat("good")
        .with("a-json/tokenizer.json", "{}")
        .with("b-text/tokenizer.json", "no json")
        .with("c-vocabulary/x.tiktoken", "no base64")
        .toy("d-config")
        .with("d-config/tokenizer_config.json", "[")
        .toy("e-template")
        .with("e-template/chat_template.jinja", "{% for %}")
        .toy("f-mute")
        .with("f-mute/chat_template.jinja", "always the same")
        .load();
    assert_eq!(loaded(&models), ["good"]);
    let failed: Vec<_> = models.report().failed.iter().map(|failed| &*failed.model).collect();
    assert_eq!(failed, ["a-json", "b-text", "c-vocabulary", "d-config", "e-template", "f-mute"]);
    for (failed, why) in models.report().failed.iter().zip([
        "tokenizer.json cannot be used: ",
        "tokenizer.json cannot be used: ",
        "x.tiktoken cannot be used: line 1 ",
        "tokenizer_config.json is not the JSON expected: ",
        "the chat template cannot be used: the template has an error: ",
        "the chat template cannot be used: the template does not write the message",
    ]) {
        assert!(failed.error.starts_with(why), "{}", failed.error);
    }
    assert_eq!(models.report().found(), 7);
    models.encode_chat("good", "hello").unwrap();
    assert_eq!(models.encode_chat("a-json", "hello"), Err(TokenizeError::Unavailable));
}

// fingerprint:44
#[test]
fn encoding_at_the_same_time_gives_the_same_ids() {
    let models = Arc::new(Dir::new().chat("m").load());
    let text = "hello world ".repeat(200);
    let want = models.encode_chat("m", &text).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(models.encode_chat("m", &text).as_ref(), Ok(&want));
                }
            });
        }
    });
    assert_eq!(want.len(), 402);
}

#[test]
fn templates_are_taken_from_the_first_source_that_has_one() {
    let says = |word: &str| format!("{word} {{{{ messages[0].content }}}}");
    let json = |word: &str| serde_json::json!({ "chat_template": says(word) }).to_string();
    let both = serde_json::to_string(&says("world")).unwrap();
    let sources = [
        ("chat_template.jinja", says("<s>")),
        ("tokenizer_config.json", json("<go>")),
        ("chat_template.json", both),
        ("other.jinja", says("hello")),
    ];
    for (first, want) in [BOS, GO, WORLD, HELLO].into_iter().enumerate() {
        let dir =
            sources[first..].iter().fold(Dir::new().toy("m"), |dir, (file, text)| dir.with(&format!("m/{file}"), text));
        assert_eq!(dir.load().encode_chat("m", "hello"), Ok(vec![want, HELLO]), "{}", sources[first].0);
    }
    let object = Dir::new().toy("m").with("m/chat_template.json", &json("world")).load();
    assert_eq!(object.encode_chat("m", "hello"), Ok(vec![WORLD, HELLO]));
    let none = Dir::new().toy("m").load();
    assert_eq!(none.encode_chat("m", "hello"), Err(TokenizeError::Failed), "no template");
    assert!(!none.report().loaded[0].chat);
}

/// Qwen's pattern, with the pieces that the engines' regular expressions (Oniguruma) cut this text into.
#[test]
fn text_is_split_where_the_engines_split_it() {
    let pattern = concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
        r"|\s+(?!\S)|\s+",
    );
    let text = "I'LL say \u{2018}it\u{2019}'s  12  x\u{a0}é!!\n\n  if:\n\tok \u{2003}\n  中文e\u{301}'\u{17f}";
    let pieces = [
        "I",
        "'LL",
        " say",
        " \u{2018}",
        "it",
        "\u{2019}'",
        "s",
        " ",
        " ",
        "1",
        "2",
        " ",
        " x",
        "\u{a0}é",
        "!!\n\n",
        " ",
        " if",
        ":\n",
        "\tok",
        " \u{2003}\n",
        " ",
        " 中文e",
        "\u{301}'",
        "\u{17f}",
    ];
    let mut words: Vec<&str> = pieces.to_vec();
    words.sort_unstable();
    words.dedup();
    let id = |piece: &str| words.binary_search(&piece).map_or(0, |at| at as u32 + 1);
    let vocab = words.iter().map(|word| ((*word).to_owned(), id(word))).chain([("<unk>".to_owned(), 0)]).collect();
    let mut tokenizer =
        Tokenizer::new(WordLevel::builder().vocab(vocab).unk_token("<unk>".to_owned()).build().unwrap());
    let split = Split::new(SplitPattern::Regex(pattern.to_owned()), SplitDelimiterBehavior::Isolated, false);
    tokenizer.with_pre_tokenizer(Some(split.unwrap()));
    let models = Dir::new().with("m/tokenizer.json", &tokenizer.to_string(false).unwrap()).load();
    assert_eq!(models.encode_plain("m", text), Ok(pieces.map(id).to_vec()));
}

#[test]
fn tokens_that_only_the_configuration_names_are_added() {
    let config = r#"{"bos_token": "<s>", "eos_token": "</s>", "added_tokens_decoder": {
        "14991": {"content": "<user>", "special": true}, "14992": {"content": "<both>", "lstrip": true, "rstrip": true}}}"#;
    let words = [("<unk>", 0), ("hello", 1)].map(|(word, id)| (word.to_owned(), id)).into_iter().collect();
    let mut bare = Tokenizer::new(WordLevel::builder().vocab(words).unk_token("<unk>".to_owned()).build().unwrap());
    bare.with_pre_tokenizer(Some(WhitespaceSplit));
    let models = Dir::new()
        .with("m/tokenizer.json", &bare.to_string(false).unwrap())
        .with("m/tokenizer_config.json", config)
        .load();
    // The engines' library numbers them on from the vocabulary, whatever the file says; so must we.
    assert_eq!(models.encode_plain("m", "<user>hello <both> hello</s><s>"), Ok(vec![2, 1, 3, 1, 5, 4]));
}

#[test]
fn the_vocabulary_of_tiktoken_serves_as_a_model() {
    let bytes = (0..=255_u8).map(|byte| format!("{} {byte}\n", base64(&[byte])));
    let vocabulary: String =
        bytes.chain(["aGU= 256\n".to_owned(), "bGw= 257\n".to_owned(), "aGVsbA== 258\n".to_owned()]).collect();
    let config = r#"{"added_tokens_decoder": {"300": {"content": "<s>", "special": true}}, "bos_token": "<s>"}"#;
    let models = Dir::new()
        .with("openai/m/cl100k.tiktoken", &vocabulary)
        .with("openai/m/tokenizer_config.json", config)
        .with("openai/m/chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}")
        .with("bare/v.tiktoken", &vocabulary)
        .toy("wins")
        .with("wins/v.tiktoken", &vocabulary)
        .load();
    assert_eq!(models.encode_chat("openai/m", "hello"), Ok(vec![300, 258, 111]));
    assert_eq!(models.encode_plain("bare", "hello<s>"), Ok(vec![258, 111, 60, 115, 62]));
    assert_eq!(models.encode_plain("wins", "hello"), Ok(vec![BOS, HELLO]), "tokenizer.json wins");
}

#[test]
fn templates_that_tell_the_date_are_reported() {
    let clock = ManualClock::at(1_736_942_400_000_000);
    let dir = Dir::new().chat("timeless").toy("dated").with(
        "dated/chat_template.jinja",
        "{% if strftime_now('%d') == '15' %}world {% endif %}{{ messages[0].content }}",
    );
    let models = Models::load_at(dir.0.path(), Arc::new(clock.clone()));
    let depends: Vec<_> = models.report().loaded.iter().map(|model| (&*model.model, model.depends_on_time)).collect();
    assert_eq!(depends, [("dated", true), ("timeless", false)]);
    assert_eq!(models.encode_chat("dated", "hello"), Ok(vec![WORLD, HELLO]));
    clock.advance(Duration::from_secs(2 * 86_400));
    assert_eq!(models.encode_chat("dated", "hello"), Ok(vec![HELLO]), "{}", clock.now());
}

#[cfg(unix)]
#[test]
fn files_outside_the_root_are_not_read() {
    let outside = Dir::new().chat("m");
    let dir = Dir::new().toy("m");
    for file in ["tokenizer_config.json", "chat_template.jinja"] {
        std::os::unix::fs::symlink(outside.0.path().join("m").join(file), dir.0.path().join("m").join(file)).unwrap();
    }
    let models = dir.load();
    assert_eq!(models.encode_chat("m", "hello"), Err(TokenizeError::Failed), "its template is outside");
    assert_eq!(
        models.report().skipped.iter().map(|skip| skip.reason).collect::<Vec<_>>(),
        [SkipReason::LeadsOutside; 2]
    );
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
