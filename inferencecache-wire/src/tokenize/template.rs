//! A model's chat template, rendered as the engines render it: Jinja with the settings and the extras of Hugging Face.
//!
//! 1. One message goes in, of role `user`, with the generation prompt on; `tools` and `documents` are there and hold none.
//! 2. Time and memory of a rendering are bounded: by fuel, and by the length of what it writes.
//! 3. The only thing a template can learn beside its input is the time.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;

use inferencecache_core::route::MAX_TEXT_BYTES;
use inferencecache_core::time::Micros;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};

use super::config::Config;
use super::extras;

/// Steps of one rendering: about a second's worth. A loop over each character of the longest text takes half of it.
const FUEL: u64 = 32_000_000;
/// Longest rendered prompt, in bytes.
const MAX_RENDERED_BYTES: usize = 4 * MAX_TEXT_BYTES;

const NAME: &str = "chat";
const DAY: Micros = 86_400_000_000;
/// An hour, a minute and a second.
const ODD_TIME: Micros = 3_661_000_000;
/// A text that no template writes by itself.
const SAMPLE: &str = "inferencecachesample";

/// A compiled template.
#[derive(Debug)]
pub(super) struct ChatTemplate {
    env: Environment<'static>,
    /// Special tokens by the names that templates use.
    roles: Value,
    content: Content,
}

/// What the template wants in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// The text.
    Text,
    /// A list with one part of type `text`, as templates of multimodal models do.
    Parts,
}

/// A template that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum TemplateError {
    #[error("the template has an error")]
    Invalid(#[source] Error),
    #[error("the template does not write the message")]
    Mute,
}

impl ChatTemplate {
    /// Compiles `source`, and tries it at time `now`.
    ///
    /// # Errors
    /// When it does not compile, does not render a plain message, or leaves the message out: then all prompts would get the
    /// same tokens.
    pub(super) fn compile(source: &str, config: &Config, now: Micros) -> Result<Self, TemplateError> {
        let mut env = Environment::new();
        env.set_syntax(syntax()?);
        env.set_fuel(Some(FUEL));
        extras::add_to(&mut env);
        let source = plain_generation_blocks(source).into_owned();
        env.add_template_owned(NAME, source).map_err(TemplateError::Invalid)?;
        let roles = config.roles.iter().map(|(role, token)| ((*role).to_owned(), Value::from(&*token.content)));
        let roles = Value::from(roles.collect::<BTreeMap<_, _>>());
        let mut template = Self { env, roles, content: Content::Text };
        let written = template.render(SAMPLE, now);
        if written.as_ref().is_ok_and(|text| text.contains(SAMPLE)) {
            return Ok(template);
        }
        template.content = Content::Parts;
        if template.render(SAMPLE, now).is_ok_and(|text| text.contains(SAMPLE)) {
            return Ok(template);
        }
        Err(written.map_or_else(TemplateError::Invalid, |_| TemplateError::Mute))
    }

    /// The prompt that a chat of one message with content `text` becomes, at time `now`.
    ///
    /// # Errors
    /// When the template raises one, or a bound is reached.
    pub(super) fn render(&self, text: &str, now: Micros) -> Result<String, Error> {
        let content = match self.content {
            Content::Text => Value::from(text),
            Content::Parts => Value::from(vec![context! { type => "text", text => text }]),
        };
        let context = context! {
            messages => vec![context! { role => "user", content => content }],
            add_generation_prompt => true,
            tools => Value::from(()),
            documents => Value::from(()),
            strftime_now => Value::from_function(move |format: &str| extras::strftime(now, format)),
            ..self.roles.clone()
        };
        let mut out = Bounded(Vec::new());
        self.env.get_template(NAME)?.render_captured_to(context, &mut out)?;
        String::from_utf8(out.0).map_err(|_| Error::new(ErrorKind::WriteFailure, "not UTF-8"))
    }

    /// Whether the prompt depends on when it is rendered: then an engine renders another one once its day has changed.
    pub(super) fn depends_on_time(&self, now: Micros) -> bool {
        let render = |later: Micros| self.render(SAMPLE, now.saturating_add(later)).ok();
        // One day apart, and at another time of the day.
        let [first, next_day, odd_time] = [0, DAY, ODD_TIME].map(render);
        first != next_day || first != odd_time
    }
}

/// The engines' settings.
fn syntax() -> Result<SyntaxConfig, TemplateError> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(TemplateError::Invalid)
}

/// Replaces `{% generation %}` and `{% endgeneration %}`, which mark text for training and render what is between them, by a
/// block that does the same, with the same effect on blanks.
fn plain_generation_blocks(source: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut rest = source;
    let mut copied = 0;
    while let Some(start) = rest.find("{%") {
        let tag = &rest[start + 2..];
        let at = source.len() - tag.len();
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let sign = |c: char| matches!(c, '-' | '+');
        let body = &tag[..end];
        let word = body.trim_start_matches(sign).trim_end_matches(sign);
        let (word, plain) = match word.trim() {
            "generation" => (word.trim(), "if true"),
            "endgeneration" => (word.trim(), "endif"),
            _ => continue,
        };
        let Some(inside) = body.find(word) else { continue };
        out.push_str(&source[copied..at + inside]);
        out.push_str(plain);
        copied = at + inside + word.len();
    }
    if copied == 0 {
        return Cow::Borrowed(source);
    }
    out.push_str(&source[copied..]);
    Cow::Owned(out)
}

/// A buffer that refuses to grow without end.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_RENDERED_BYTES {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noon on 15 January 2025, UTC.
    const NOON: Micros = 1_736_942_400_000_000;

    fn compile(source: &str) -> Result<ChatTemplate, TemplateError> {
        let config = Config::parse(br#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}}"#).unwrap();
        ChatTemplate::compile(source, &config, NOON)
    }

    #[track_caller]
    fn check(source: &str, text: &str, want: &str) {
        let template = compile(source).unwrap_or_else(|error| panic!("{source}: {error:?}"));
        assert_eq!(template.render(text, NOON).unwrap(), want, "{source}");
    }

    #[test]
    fn one_user_message_with_the_generation_prompt_on() {
        // server:77
        check(
            "{% for message in messages %}[{{ message.role }}:{{ message['content'] }}]{% endfor %}\
             {% if add_generation_prompt %}<go>{% endif %}{{ messages | length }}",
            "hello world",
            "[user:hello world]<go>1",
        );
    }

    #[test]
    fn tools_and_documents_are_defined_and_none() {
        check(
            "{{ messages[0].content }}{{ tools is defined }}{{ tools is none }}{{ documents is none }}{{ tools is iterable }}\
             {% if tools %}T{% endif %}{{ custom_tools is defined }}",
            "x",
            "xTrueTrueTrueFalseFalse",
        );
    }

    #[test]
    fn special_tokens_are_named_and_missing_ones_undefined() {
        check(
            "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ unk_token }}{{ messages[-1].content }}",
            "x",
            "<s></s>Falsex",
        );
    }

    #[test]
    fn blocks_are_trimmed_and_python_methods_known() {
        check(
            "  {% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.get('content').strip() | upper }}\n  {% endif %}\n{% endfor %}\n{{ messages[0].content }}",
            " inferencecachesample ",
            "INFERENCECACHESAMPLE\n inferencecachesample ",
        );
        check(
            "{% set c = messages[0].content %}{{ c.split('|')[1] }}{{ c.startswith('a') }}{{ messages[0].items() | list | length }}{{ c }}",
            "a|b",
            "bTrue2a|b",
        );
        check("{% for m in messages %}{{ m.content }}{% break %}{% endfor %}", "x", "x");
        check("{{ messages[0] | tojson }}", "é\"", r#"{"role": "user", "content": "é\""}"#);
    }

    #[test]
    fn marks_for_training_change_nothing() {
        let with = "a {%- generation -%} {{ messages[0].content }} {%+ endgeneration +%}\n b{% generation %}\nc{% endgeneration %}";
        let without = with.replace("endgeneration", "endif").replace("generation", "if true");
        assert_eq!(plain_generation_blocks(with), without);
        check(with, "x", &compile(&without).unwrap().render("x", NOON).unwrap());
        for source in ["{% if generation %}", "{{ generation }}", "{% generation", "{%", "{% endgenerations %}"] {
            assert_eq!(plain_generation_blocks(source), source);
        }
    }

    #[test]
    fn parts_are_given_to_templates_that_want_them() {
        let source =
            "{% for part in messages[0].content %}{% if part.type == 'text' %}<{{ part.text }}>{% endif %}{% endfor %}";
        assert_eq!(compile(source).unwrap().render("x", NOON).unwrap(), "<x>");
    }

    #[test]
    fn unusable_templates_are_refused() {
        assert!(matches!(compile("{% if %}"), Err(TemplateError::Invalid(_))));
        assert!(matches!(compile("{{ raise_exception('no') }}"), Err(TemplateError::Invalid(_))));
        assert!(matches!(compile("the same for all"), Err(TemplateError::Mute)));
        let strict = compile(
            "{% if messages[0].content == 'x' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}",
        );
        let strict = strict.unwrap();
        assert!(strict.render("x", NOON).is_err());
        assert_eq!(strict.render("y", NOON).unwrap(), "y");
    }

    #[test]
    fn time_is_local_and_its_use_is_noticed() {
        // Noon is on the same day in all zones but the outermost.
        let dated = compile("{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}").unwrap();
        assert_eq!(dated.render("x", NOON).unwrap(), "15 Jan 2025 x");
        assert!(dated.depends_on_time(NOON));
        assert!(compile("{{ strftime_now('%H') }}{{ messages[0].content }}").unwrap().depends_on_time(NOON));
        assert!(!compile("{{ messages[0].content }}").unwrap().depends_on_time(NOON));
        assert!(compile("{{ strftime_now('%!') }}{{ messages[0].content }}").is_err());
    }

    #[test]
    fn renderings_are_bounded() {
        let copies = compile("{{ messages[0].content * 100 }}").unwrap();
        assert!(copies.render(&"x".repeat(MAX_RENDERED_BYTES / 100), NOON).is_ok());
        assert!(copies.render(&"x".repeat(MAX_RENDERED_BYTES / 50), NOON).is_err());
        let slow =
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{{ messages[0].content }}";
        assert!(compile(slow).is_err());
        let walk = compile("{% for c in messages[0].content %}{{ c }}{% endfor %}{{ messages[0].content }}").unwrap();
        assert!(walk.render(&"x".repeat(MAX_TEXT_BYTES), NOON).is_ok());
    }
}
