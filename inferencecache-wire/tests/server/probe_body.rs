//! The bodies of `/probe`: what is accepted, what is refused and with which words, and what an answer looks like.

use inferencecache_core::probe::{ProbeOutcome, ProbeTarget};
use inferencecache_wire::probe::{MAX_BODY, ProbeError, ProbeRequest, ProbeResponse, Stage, StageError, decode};
use proptest::prelude::*;
use serde::Deserialize;

/// A row of `cases/probe.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: Vec<String>,
    body: String,
    /// Backend, model, scheme, kind.
    accepted: Option<[String; 4]>,
    refused: Option<Refusal>,
    /// What the refusal must name.
    #[serde(default)]
    names: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Refusal {
    Decode,
    Trailing,
    Missing,
}

fn refusal(error: &ProbeError) -> (Refusal, &'static str) {
    match error {
        ProbeError::Malformed(_) => (Refusal::Decode, "decode probe request: "),
        ProbeError::Trailing => (Refusal::Trailing, "probe request body has trailing content"),
        ProbeError::Missing(_) => (Refusal::Missing, "probe request missing required field"),
        other => panic!("{other:?}"),
    }
}

/// A request whose JSON has this many bytes.
fn sized(bytes: usize) -> String {
    let frame = r#"{"backend":"","model":"m","hashScheme":"vllm"}"#;
    let backend = "b".repeat(bytes - frame.len());
    frame.replacen("\"\"", &format!("\"{backend}\""), 1)
}

#[track_caller]
fn check(body: &str, want: Result<(), Refusal>) {
    let got = decode(body.as_bytes());
    assert_eq!(got.as_ref().map(|_| ()).map_err(|error| refusal(error).0), want, "{got:?}");
}

// server:130-136, field:44
#[test]
fn every_body_is_taken_or_refused_as_specified() {
    let rows: Vec<Row> = serde_json::from_str(include_str!("../cases/probe.json")).expect("the rows parse");
    assert!(rows.len() > 40, "only {} rows", rows.len());
    for row in &rows {
        assert!(!row.id.is_empty(), "{row:#?}");
        match (&row.accepted, decode(row.body.as_bytes())) {
            (Some([backend, model, hash_scheme, backend_type]), Ok(request)) => {
                let want = ProbeTarget { backend, model, scheme: hash_scheme, backend_type };
                assert_eq!(request.target(), want, "{row:#?}");
            }
            (None, Err(error)) => {
                let text = error.to_string();
                let (kind, begins) = refusal(&error);
                assert_eq!(Some(kind), row.refused, "{text}: {row:#?}");
                assert!(text.starts_with(begins), "{text}");
                assert!(row.names.iter().all(|name| text.contains(name)), "{text}: {row:#?}");
            }
            (_, result) => panic!("{result:?}: {row:#?}"),
        }
    }
}

// server:137
#[test]
fn the_limit_is_exact() {
    check(&sized(MAX_BODY), Ok(()));
    check(&format!("{}\n", sized(MAX_BODY - 1)), Ok(()));
    check(&sized(MAX_BODY + 1), Err(Refusal::Decode));
    check(&sized(5000), Err(Refusal::Decode));
    check(&format!("{}{}", " ".repeat(MAX_BODY), sized(100)), Err(Refusal::Decode));
    check(&" ".repeat(MAX_BODY + 1), Err(Refusal::Decode));

    check(&format!("{}\n", sized(MAX_BODY)), Err(Refusal::Trailing));
    check(&format!("{}{}", sized(100), " ".repeat(MAX_BODY)), Err(Refusal::Trailing));
    check(&format!("null{}", " ".repeat(MAX_BODY)), Err(Refusal::Trailing));

    let text = decode(sized(5000).as_bytes()).expect_err("too large").to_string();
    assert!(text.contains("4096"), "{text}");
    // A fault that is seen before the limit is named.
    let text = decode(sized(5000).replacen("backend", "Backend", 1).as_bytes()).expect_err("two faults").to_string();
    assert!(text.starts_with("decode probe request: "), "{text}");
    // The first bytes and one more are all that is looked at.
    let body = sized(MAX_BODY) + &"x".repeat(MAX_BODY);
    assert_eq!(decode(body.as_bytes()), decode(&body.as_bytes()[..=MAX_BODY]));
}

#[test]
fn refusals_stay_short_whatever_they_quote() {
    let body = format!("{{\"{}\":1}}", "k".repeat(4000));
    let text = decode(body.as_bytes()).expect_err("an unknown key").to_string();
    assert!(text.len() < 500, "{} bytes", text.len());
}

// server:130
#[test]
fn errors_are_left_out_when_there_are_none() {
    let json = |response: &ProbeResponse| serde_json::to_string(response).expect("it can be written");
    let passed = ProbeResponse {
        backend: "cb-1".to_owned(),
        ingest: Stage::Ok,
        routing: Stage::Ok,
        t2: Stage::Skipped,
        errors: vec![],
    };
    assert_eq!(json(&passed), r#"{"backend":"cb-1","ingest":"ok","routing":"ok","t2":"skipped"}"#);
    let error = StageError { stage: "t2".to_owned(), message: "put failed: \"no\"".to_owned() };
    let failed = ProbeResponse { t2: Stage::Failed, errors: vec![error], ..passed };
    assert_eq!(
        json(&failed),
        r#"{"backend":"cb-1","ingest":"ok","routing":"ok","t2":"failed","errors":[{"stage":"t2","message":"put failed: \"no\""}]}"#
    );
    assert_eq!(serde_json::from_str::<ProbeResponse>(&json(&failed)).expect("its own words"), failed);
    let nothing = ProbeResponse::new("cb-1".to_owned(), ProbeOutcome::default());
    assert_eq!(json(&nothing), r#"{"backend":"cb-1","ingest":"skipped","routing":"skipped","t2":"skipped"}"#);
}

/// What a consumer does not know has not passed.
#[test]
fn answers_of_other_versions_are_read_with_care() {
    let read = |json: &str| serde_json::from_str::<ProbeResponse>(json).expect("it can be read");
    assert_eq!(read("{}"), ProbeResponse::default());
    let odd = read(r#"{"backend":"b","ingest":"fine","routing":"","t3":"ok","errors":[{"stage":"x"}]}"#);
    assert_eq!([odd.ingest, odd.routing, odd.t2], [Stage::Unknown; 3]);
    assert_eq!(odd.errors, [StageError { stage: "x".to_owned(), message: String::new() }]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_end_in_a_request_or_in_words(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Err(error) = decode(&body) {
            prop_assert!(error.to_string().starts_with(refusal(&error).1));
        }
    }

    #[test]
    fn what_is_written_is_read(
        backend in ".{1,40}", model in ".{1,40}", hash_scheme in ".{1,40}", backend_type in ".{0,40}",
    ) {
        let request = ProbeRequest { backend, model, hash_scheme, backend_type };
        let body = serde_json::to_vec(&request).expect("it can be written");
        prop_assert_eq!(decode(&body), Ok(request));
    }

    #[test]
    fn a_broken_request_is_refused(cut in 0_usize..46) {
        let body = sized(46);
        prop_assert!(decode(&body.as_bytes()[..cut]).is_err());
    }
}
