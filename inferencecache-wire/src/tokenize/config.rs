//! What `tokenizer_config.json` says: special tokens by role, tokens added to the vocabulary, a chat template.

use serde_json::{Map, Value};

/// Roles under which a special token is named, in the order in which they are added to a vocabulary.
const ROLES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The parts of the file that matter for encoding. Default: there is no file.
#[derive(Debug, Default)]
pub(super) struct Config {
    /// Special tokens by role, as templates name them.
    pub(super) roles: Vec<(&'static str, Token)>,
    /// Special tokens without a role.
    pub(super) additional: Vec<Token>,
    /// Tokens added to the vocabulary, by ascending id.
    pub(super) added: Vec<(u32, Token)>,
    pub(super) chat_template: Option<String>,
}

/// A token beside the vocabulary proper, and how it is looked for in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) content: String,
    pub(super) special: bool,
    pub(super) single_word: bool,
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
    pub(super) normalized: bool,
}

impl Config {
    /// Reads the file's text. What it says in another form than expected counts as not said, as for the engines.
    ///
    /// # Errors
    /// When it is no JSON object.
    pub(super) fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        let fields: Map<String, Value> = serde_json::from_slice(text)?;
        let roles = ROLES.into_iter().filter_map(|role| Some((role, Token::parse(fields.get(role)?, true)?)));
        let additional = fields.get("additional_special_tokens").and_then(Value::as_array).into_iter().flatten();
        let added = fields.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten();
        let mut added: Vec<(u32, Token)> =
            added.filter_map(|(id, token)| Some((id.parse().ok()?, Token::parse(token, false)?))).collect();
        added.sort_by_key(|(id, _)| *id);
        Ok(Self {
            roles: roles.collect(),
            additional: additional.filter_map(|token| Token::parse(token, true)).collect(),
            added,
            chat_template: fields.get("chat_template").and_then(template),
        })
    }

    /// The special tokens, whether or not they have a role.
    pub(super) fn special(&self) -> impl Iterator<Item = &Token> {
        self.roles.iter().map(|(_, token)| token).chain(&self.additional)
    }
}

impl Token {
    /// A string, or an object with `content`.
    fn parse(value: &Value, special: bool) -> Option<Self> {
        let flag = |name| value.get(name).and_then(Value::as_bool);
        let content = value.as_str().or_else(|| value.get("content")?.as_str())?.to_owned();
        let special = special || flag("special").unwrap_or(false);
        Some(Self {
            content,
            special,
            single_word: flag("single_word").unwrap_or(false),
            lstrip: flag("lstrip").unwrap_or(false),
            rstrip: flag("rstrip").unwrap_or(false),
            normalized: flag("normalized").unwrap_or(!special),
        })
    }
}

/// A template: a string, or the one named `default` in a list of several.
fn template(value: &Value) -> Option<String> {
    if let Some(named) = value.as_array() {
        let default = named.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))?;
        return default.get("template")?.as_str().map(str::to_owned);
    }
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_strings_or_objects() {
        let config = Config::parse(
            br#"{"bos_token": {"content": "<s>", "lstrip": true}, "eos_token": "</s>", "pad_token": null, "unk_token": 3,
                 "additional_special_tokens": ["<x>"], "chat_template": "T",
                 "added_tokens_decoder": {"10": {"content": "b", "special": true}, "9": {"content": "a"}, "x": {}}}"#,
        )
        .unwrap();
        let roles: Vec<_> = config.roles.iter().map(|(role, token)| (*role, &*token.content, token.lstrip)).collect();
        assert_eq!(roles, [("bos_token", "<s>", true), ("eos_token", "</s>", false)]);
        assert_eq!(config.additional[0].content, "<x>");
        let added: Vec<_> =
            config.added.iter().map(|(id, token)| (*id, &*token.content, token.special, token.normalized)).collect();
        assert_eq!(added, [(9, "a", false, true), (10, "b", true, false)]);
        assert_eq!(config.chat_template.as_deref(), Some("T"));
    }

    #[test]
    fn of_several_templates_the_default_counts() {
        let several =
            br#"{"chat_template": [{"name": "tool_use", "template": "A"}, {"name": "default", "template": "B"}]}"#;
        assert_eq!(Config::parse(several).unwrap().chat_template.as_deref(), Some("B"));
        assert_eq!(Config::parse(b"{}").unwrap().chat_template, None);
        assert!(Config::parse(b"[]").is_err());
    }
}
