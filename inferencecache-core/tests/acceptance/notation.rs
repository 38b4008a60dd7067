//! The words of the case files: holds, chains, durations, scopes, rows. See `tests/cases/README.md`.
//!
//! A word that cannot be read panics: a case file is part of the test.

use std::fmt::Debug;
use std::str::FromStr;

use inferencecache_core::Stats;
use inferencecache_core::time::Micros;

/// Tenant, model and scheme of a step.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scope {
    pub(crate) tenant: String,
    pub(crate) model: String,
    pub(crate) scheme: String,
}

/// A key or a chain with its attributes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Body {
    pub(crate) key: String,
    pub(crate) tokens: Option<i32>,
    pub(crate) blocks: Vec<String>,
    pub(crate) counts: Vec<i32>,
    pub(crate) age: Option<Micros>,
    pub(crate) adapter: String,
    pub(crate) tier: Option<i32>,
    pub(crate) credits: Option<u64>,
}

/// An expected row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ExpectedRow {
    pub(crate) replica: String,
    pub(crate) score: f64,
    /// Matched tokens, probability, tier; `None` when only the score is given.
    pub(crate) details: Option<(i32, f64, i32)>,
}

// === impl Scope ===

impl Default for Scope {
    fn default() -> Self {
        Self { tenant: "t".into(), model: "m".into(), scheme: "vllm".into() }
    }
}

impl Scope {
    /// Takes `<tenant,model,scheme>` off the front of `text`; parts left out or `.` stay as they are here.
    pub(crate) fn strip<'a>(&self, text: &'a str) -> (Self, &'a str) {
        let mut scope = self.clone();
        let Some((inside, rest)) = text.strip_prefix('<').and_then(|text| text.split_once('>')) else {
            return (scope, text);
        };
        let slots = [&mut scope.tenant, &mut scope.model, &mut scope.scheme];
        for (slot, part) in slots.into_iter().zip(inside.split(',')) {
            if part != "." {
                *slot = name(part);
            }
        }
        (scope, rest)
    }
}

// === impl Body ===

impl Body {
    /// Reads up to the first blank outside brackets. Returns what follows.
    pub(crate) fn parse(text: &str) -> (Self, &str) {
        let mut body = Self::default();
        let (key, mut rest) = until(text, "=@/{#+[ ");
        body.key = name(key);
        while let Some(mark) = rest.chars().next().filter(|&mark| mark != ' ') {
            rest = body.attribute(mark, &rest[mark.len_utf8()..]);
        }
        (body, rest.trim_start())
    }

    /// Reads one attribute. Returns what follows.
    fn attribute<'a>(&mut self, mark: char, text: &'a str) -> &'a str {
        match mark {
            '+' => return text,
            '[' => {
                let (list, rest) = text.split_once(']').expect("a closing ]");
                self.blocks = list.split_whitespace().flat_map(range).collect();
                self.counts = vec![16; self.blocks.len()];
                return rest;
            }
            '{' => {
                let (word, rest) = text.split_once('}').expect("a closing }");
                self.tier = Some(tier(word));
                return rest;
            }
            '×' if text.starts_with('(') => {
                let (list, rest) = text[1..].split_once(')').expect("a closing )");
                self.counts = list.split(',').filter(|word| !word.is_empty()).map(number).collect();
                return rest;
            }
            _ => {}
        }
        let (word, rest) = until(text, "=@/{#+[× ");
        match mark {
            '=' => self.tokens = Some(number(word)),
            '@' => self.age = Some(duration(word)),
            '/' => self.adapter = name(word),
            '#' => self.credits = Some(number(word)),
            '×' => self.counts = vec![number(word); self.blocks.len()],
            _ => panic!("cannot read `{mark}{text}`"),
        }
        rest
    }
}

// === words ===

fn until<'a>(text: &'a str, stops: &str) -> (&'a str, &'a str) {
    text.split_at(text.find(|mark| stops.contains(mark)).unwrap_or(text.len()))
}

/// `''` is the empty name.
pub(crate) fn name(text: &str) -> String {
    if text == "''" { String::new() } else { text.to_owned() }
}

pub(crate) fn number<N: FromStr<Err: Debug>>(text: &str) -> N {
    text.parse().unwrap_or_else(|error| panic!("`{text}` is no number: {error:?}"))
}

/// `b1..b4` is four names.
fn range(word: &str) -> Vec<String> {
    let Some((first, last)) = word.split_once("..") else { return vec![name(word)] };
    let (stem, from) = first.split_at(first.len() - 1);
    let to = last.strip_prefix(stem).expect("one stem");
    (number::<u32>(from)..=number(to)).map(|n| format!("{stem}{n}")).collect()
}

fn tier(word: &str) -> i32 {
    match word {
        "T1" => 1,
        "T2" => 2,
        "T3" => 3,
        "unset" => 0,
        raw => number(raw),
    }
}

/// `1h`, `29m59s`, `-10m`, `5us`, `0`.
pub(crate) fn duration(text: &str) -> Micros {
    let (sign, mut rest) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let mut total = 0;
    while !rest.is_empty() {
        let digits = rest.find(|mark: char| !mark.is_ascii_digit()).unwrap_or(rest.len());
        let unit = rest[digits..].find(|mark: char| mark.is_ascii_digit()).map_or(rest.len(), |next| digits + next);
        let micros = match &rest[digits..unit] {
            "h" => 3_600_000_000,
            "m" => 60_000_000,
            "s" => 1_000_000,
            "ms" => 1_000,
            "us" => 1,
            "" if &rest[..digits] == "0" => 0,
            other => panic!("`{other}` is no unit of time in `{text}`"),
        };
        total += number::<Micros>(&rest[..digits]) * micros;
        rest = &rest[unit..];
    }
    sign * total
}

/// `hr=.8 pr=.1 mem=100 t2=6/10 @30s`: the figures and their age.
pub(crate) fn stats(text: &str) -> (Stats, Option<Micros>) {
    let (mut stats, mut age) = (Stats::default(), None);
    for word in text.split_whitespace() {
        if let Some(word) = word.strip_prefix('@') {
            age = Some(duration(word));
            continue;
        }
        match word.split_once('=').expect("figure=value") {
            ("hr", value) => stats.hit_rate = number(value),
            ("pr", value) => stats.pressure = number(value),
            ("mem", value) => stats.cache_memory_bytes = number(value),
            ("t2", value) => {
                let (hits, queries) = value.split_once('/').expect("hits/queries");
                (stats.t2_hit_tokens, stats.t2_query_tokens) = (number(hits), number(queries));
            }
            (other, _) => panic!("no figure is called `{other}`"),
        }
    }
    (stats, age)
}

/// `r1 (100, 50.00, 0.5, T2), r2 (7)`; `hot` rows have no tier.
pub(crate) fn rows(text: &str, hot: bool) -> Vec<ExpectedRow> {
    let mut rows = Vec::new();
    for part in text.split(')').map(|part| part.trim_start_matches([',', ' '])).filter(|part| !part.is_empty()) {
        let (replica, values) = part.split_once(" (").expect("replica (values)");
        let values: Vec<&str> = values.split(", ").collect();
        let (score, details) = match values[..] {
            [score] => (score, None),
            [matched, score] => (score, Some((matched, "1", "T1"))),
            [matched, score, prob] => (score, Some((matched, prob, "T1"))),
            [matched, score, prob, tier] => (score, Some((matched, prob, tier))),
            _ => panic!("cannot read `{part}`"),
        };
        let tier = |word| if hot { 0 } else { tier(word) };
        let details = details.map(|(matched, prob, word)| (number(matched), number(prob), tier(word)));
        rows.push(ExpectedRow { replica: replica.to_owned(), score: number(score), details });
    }
    rows
}
