//! JSON and the two bodies of the bridge, written down a second time and without any cleverness, so that a wrong rule in the
//! real decoders shows. Slow, and fit for small bodies only.

use std::collections::BTreeMap;

/// A value; numbers as they are spelled.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

struct Parser<'a> {
    rest: &'a str,
}

/// One value and blanks around it.
pub(crate) fn parse(body: &[u8]) -> Option<Json> {
    let mut parser = Parser { rest: std::str::from_utf8(body).ok()? };
    let value = parser.value()?;
    parser.blanks();
    parser.rest.is_empty().then_some(value)
}

impl Parser<'_> {
    fn blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn takes(&mut self, word: &str) -> bool {
        match self.rest.strip_prefix(word) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self) -> Option<Json> {
        self.blanks();
        for (word, value) in [("null", Json::Null), ("true", Json::Bool(true)), ("false", Json::Bool(false))] {
            if self.takes(word) {
                return Some(value);
            }
        }
        match self.rest.bytes().next()? {
            b'"' => self.text().map(Json::Text),
            b'[' => self.sequence(']', Self::value).map(Json::List),
            b'{' => self.sequence('}', Self::member).map(Json::Object),
            _ => self.number().map(Json::Number),
        }
    }

    fn member(&mut self) -> Option<(String, Json)> {
        self.blanks();
        let key = self.text()?;
        self.blanks();
        self.takes(":").then_some(())?;
        Some((key, self.value()?))
    }

    fn sequence<T>(&mut self, end: char, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let end = end.to_string();
        self.rest = &self.rest[1..];
        self.blanks();
        let mut all = Vec::new();
        if self.takes(&end) {
            return Some(all);
        }
        loop {
            all.push(one(self)?);
            self.blanks();
            if self.takes(&end) {
                return Some(all);
            }
            self.takes(",").then_some(())?;
        }
    }

    fn number(&mut self) -> Option<String> {
        let length = self.rest.find(|c: char| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E'));
        let (text, rest) = self.rest.split_at(length.unwrap_or(self.rest.len()));
        self.rest = rest;
        let unsigned = text.strip_prefix('-').unwrap_or(text);
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (unsigned, None),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (mantissa, None),
        };
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let good = digits(whole)
            && (whole == "0" || !whole.starts_with('0'))
            && fraction.is_none_or(digits)
            && exponent.is_none_or(|exponent| digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent)));
        good.then(|| text.to_owned())
    }

    fn text(&mut self) -> Option<String> {
        self.takes("\"").then_some(())?;
        let mut units: Vec<u16> = Vec::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return String::from_utf16(&units).ok();
                }
                '\\' => match chars.next()?.1 {
                    'u' => {
                        let digits: String = (0..4).filter_map(|_| chars.next()).map(|(_, digit)| digit).collect();
                        let hex = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                        units.push(hex.then(|| u16::from_str_radix(&digits, 16).ok())??);
                    }
                    plain => {
                        let known = [
                            ('"', 0x22),
                            ('\\', 0x5c),
                            ('/', 0x2f),
                            ('b', 8),
                            ('f', 12),
                            ('n', 10),
                            ('r', 13),
                            ('t', 9),
                        ];
                        units.push(known.into_iter().find(|(name, _)| *name == plain)?.1);
                    }
                },
                '\0'..='\u{1f}' => return None,
                c => units.extend(c.encode_utf16(&mut [0; 2]).iter()),
            }
        }
        None
    }
}

/// An object by its known keys; `None` when it is none, has another key, or has one twice.
fn members<'a>(json: &'a Json, known: &[&str]) -> Option<BTreeMap<&'a str, &'a Json>> {
    let pairs = match json {
        Json::Null => return Some(BTreeMap::new()),
        Json::Object(pairs) => pairs,
        _ => return None,
    };
    let mut members = BTreeMap::new();
    for (key, value) in pairs {
        if !known.contains(&key.as_str()) || members.insert(key.as_str(), value).is_some() {
            return None;
        }
    }
    Some(members)
}

type Members<'a> = BTreeMap<&'a str, &'a Json>;

/// Of a wrong kind: `None`. Absent: 0.
fn integer<T: std::str::FromStr + Default>(members: &Members<'_>, key: &str) -> Option<T> {
    match members.get(key) {
        None | Some(Json::Null) => Some(T::default()),
        Some(Json::Number(text)) if !text.contains(['.', 'e', 'E']) => text.parse().ok(),
        _ => None,
    }
}

fn text(members: &Members<'_>, key: &str) -> Option<String> {
    match members.get(key) {
        None | Some(Json::Null) => Some(String::new()),
        Some(Json::Text(text)) => Some(text.clone()),
        _ => None,
    }
}

fn flag(members: &Members<'_>, key: &str, otherwise: bool) -> Option<bool> {
    match members.get(key) {
        None | Some(Json::Null) => Some(otherwise),
        Some(Json::Bool(flag)) => Some(*flag),
        _ => None,
    }
}

fn list(members: &Members<'_>, key: &str) -> Option<Vec<Json>> {
    match members.get(key) {
        None | Some(Json::Null) => Some(Vec::new()),
        Some(Json::List(list)) => Some(list.clone()),
        _ => None,
    }
}

/// What a namespace's knobs come to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Knobs {
    pub(crate) ttl_ns: i64,
    pub(crate) lfu: bool,
    pub(crate) minimum_prefix_tokens: i32,
    pub(crate) minimum_matched_tokens: i32,
    pub(crate) routing_floor_score: f32,
    pub(crate) lookup_timeout_ms: i32,
    pub(crate) chain_requires_hot_affinity: [bool; 4],
}

/// All that a policy body says.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Policies {
    pub(crate) policies: BTreeMap<String, Knobs>,
    pub(crate) quotas: BTreeMap<String, i64>,
}

/// Nothing that is pushed reaches this one.
const RESERVED: &str = "inferencecache.io/probe";

/// What must come of a policy body; `None`: it is refused.
pub(crate) fn policies(body: &[u8]) -> Option<Policies> {
    let json = parse(body)?;
    let root = members(&json, &["version", "policies", "tenants"])?;
    let version: i64 = integer(&root, "version")?;
    let mut all = Policies::default();
    for element in list(&root, "policies")? {
        let (namespace, knobs) = knobs(&element, version)?;
        if !namespace.is_empty() && namespace != RESERVED {
            all.policies.insert(namespace, knobs);
        }
    }
    for element in list(&root, "tenants")? {
        let members = members(&element, &["tenantID", "maxIndexEntries", "isolationMode"])?;
        let (tenant, budget) = (text(&members, "tenantID")?, integer::<i64>(&members, "maxIndexEntries")?);
        text(&members, "isolationMode")?;
        if !tenant.is_empty() && tenant != RESERVED {
            all.quotas.insert(tenant, budget.max(0));
        }
    }
    (3..=7).contains(&version).then_some(all)
}

fn knobs(element: &Json, version: i64) -> Option<(String, Knobs)> {
    let of = members(
        element,
        &[
            "namespace",
            "evictionTTL",
            "minimumPrefixTokens",
            "minimumMatchedTokens",
            "routingFloorScore",
            "lookupTimeoutMs",
            "affinityRouting",
            "eviction",
            "strategy",
        ],
    )?;
    let strategy = of.get("strategy").copied().unwrap_or(&Json::Null);
    let strategy = members(strategy, &["enableChainMatching", "requireChain", "enableTenantHot"])?;
    let matched: i32 = integer(&of, "minimumMatchedTokens")?;
    let score = match of.get("routingFloorScore") {
        None | Some(Json::Null) => 0.1,
        Some(Json::Number(text)) => text.parse::<f32>().ok().filter(|score| score.is_finite())?,
        _ => return None,
    };
    let knobs = Knobs {
        ttl_ns: integer::<i64>(&of, "evictionTTL")?.max(0),
        lfu: text(&of, "eviction")?.eq_ignore_ascii_case("lfu"),
        minimum_prefix_tokens: integer::<i32>(&of, "minimumPrefixTokens")?.max(0),
        minimum_matched_tokens: if version == 3 && matched == 0 { 64 } else { matched.max(0) },
        routing_floor_score: score.max(0.0),
        lookup_timeout_ms: integer::<i32>(&of, "lookupTimeoutMs")?.max(0),
        chain_requires_hot_affinity: [
            flag(&strategy, "enableChainMatching", true)?,
            flag(&strategy, "requireChain", false)?,
            flag(&strategy, "enableTenantHot", true)?,
            flag(&of, "affinityRouting", true)?,
        ],
    };
    Some((text(&of, "namespace")?, knobs))
}

/// The backend that a probe body asks for; `None`: it is refused.
pub(crate) fn probe(body: &[u8]) -> Option<String> {
    let json = parse(body)?;
    let members = members(&json, &["backend", "model", "hashScheme", "backendType"])?;
    let [backend, model, scheme, _] =
        ["backend", "model", "hashScheme", "backendType"].map(|key| text(&members, key).ok_or(()));
    let known = text(&members, "backendType").is_some() && body.len() <= 4096;
    let all = [backend.ok()?, model.ok()?, scheme.ok()?];
    (known && all.iter().all(|value| !value.is_empty())).then(|| all[0].clone())
}
