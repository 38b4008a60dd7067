//! The controller as a process: command line, certificate, listeners, end. Its API server here is a socket that never answers.

mod running;

use std::net::TcpListener;

use running::{Running, Scene, ask, refused};

#[test]
fn command_lines_that_make_no_sense_are_refused_and_say_why() {
    for (flags, words) in [
        (&["--no-such-flag"][..], "no-such-flag"),
        (&["--webhook-bind-address=0"], "admission cannot be turned off"),
        (&["--metrics-bind-address=8080"], "invalid --metrics-bind-address"),
        (&["--health-probe-bind-address=nowhere:x"], "invalid --health-probe-bind-address"),
        (&["--zap-log-level=loud"], "invalid --zap-log-level"),
        (&["--leader-elect=maybe"], "leader-elect"),
    ] {
        let (code, said) = refused(flags);
        assert!(code == 2 && said.contains(words), "{flags:?} gave {code}: {said}");
    }
}

/// webhooks:W05
#[test]
fn without_a_certificate_that_can_be_used_it_does_not_start() {
    let scene = Scene::new("certificate");
    let authority = scene.certify();
    let (certificate, key) = (scene.at("tls.crt"), scene.at("tls.key"));
    let others = authority.issue("webhook", &["127.0.0.1".to_owned()]).expect("a certificate").1;
    let good = std::fs::read_to_string(&key).expect("the key");
    for (what, key_text, words) in [
        ("no key", None, "tls.key"),
        ("no PEM", Some("no key"), "tls.key"),
        ("another's key", Some(others.as_str()), "key"),
    ] {
        let _ = std::fs::remove_file(&key);
        if let Some(text) = key_text {
            std::fs::write(&key, text).expect("a key");
        }
        let (code, said) = refused(&scene.flags());
        assert!(
            code == 1 && said.contains("webhook certificate") && said.contains(words),
            "{what} gave {code}: {said}"
        );
    }
    std::fs::write(&key, good).expect("the key");
    std::fs::remove_file(&certificate).expect("it was there");
    let (code, said) = refused(&scene.flags());
    assert!(code == 1 && said.contains("tls.crt"), "{code}: {said}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let scene = Scene::new("taken");
    scene.certify();
    let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = holder.local_addr().expect("an address").to_string();
    for flag in ["webhook-bind-address", "metrics-bind-address", "health-probe-bind-address"] {
        let (code, said) = refused(&scene.flags_with(&[&format!("--{flag}={taken}")]));
        let clear = said.contains(&taken) && said.contains("in use");
        assert!(code == 1 && clear, "--{flag} gave {code}: {said}");
    }
}

#[test]
fn without_a_way_to_the_api_server_it_does_not_start() {
    let scene = Scene::new("kubeconfig");
    scene.certify();
    let missing = scene.at("missing");
    let (code, said) = refused(&scene.flags_with(&[&format!("--kubeconfig={}", missing.display())]));
    assert!(code == 1 && said.contains("missing"), "{code}: {said}");
}

/// Every replica admits and says how it is, whatever becomes of the API server.
#[test]
fn it_serves_probes_metrics_and_reviews_while_nothing_else_answers() {
    let scene = Scene::new("serves");
    let authority = scene.certify();
    let running = Running::start(&scene, &[]);
    for path in ["/healthz", "/readyz"] {
        let answer = ask(&running.health, path);
        assert!(answer.contains(" 200 "), "{path}: {answer}");
    }
    let allowed = scene.review(&running, &authority, "DELETE").expect("an answer");
    assert_eq!(
        (allowed["response"]["uid"].as_str(), allowed["response"]["allowed"].as_bool()),
        (Some("u1"), Some(true))
    );
    let metrics = ask(&running.metrics, "/metrics");
    assert!(metrics.contains("inferencecache_webhook_certificate_reads_total{result=\"ok\"} 1"), "{metrics}");
    assert!(metrics.contains("inferencecache_webhook_reviews_total"), "{metrics}");
    // A listing that is not answered in time refuses, and says that this is no verdict.
    let denied = scene.review(&running, &authority, "CREATE").expect("an answer");
    assert_eq!(denied["response"]["allowed"], false, "{denied}");
    assert_eq!(denied["response"]["status"]["code"], 403, "{denied}");
}

#[test]
fn listeners_beside_admission_can_be_turned_off() {
    let scene = Scene::new("alone");
    let authority = scene.certify();
    let running = Running::start(&scene, &["--metrics-bind-address=0", "--health-probe-bind-address=0"]);
    assert_eq!((running.metrics.as_str(), running.health.as_str()), ("", ""));
    scene.review(&running, &authority, "DELETE").expect("an answer");
}

/// webhooks:W03,W04
#[test]
fn a_certificate_is_replaced_without_a_restart() {
    let scene = Scene::new("reload");
    let first = scene.certify();
    let running = Running::start(&scene, &[]);
    scene.review(&running, &first, "DELETE").expect("the first certificate");
    std::fs::write(scene.at("tls.crt"), "half of a pair").expect("a file");
    scene.review(&running, &first, "DELETE").expect("the last good pair");
    running.said("webhook_certificate_refused");
    let second = scene.certify();
    scene.review(&running, &second, "DELETE").expect("the second certificate");
    scene.review(&running, &first, "DELETE").expect_err("the first is gone");
    running.said("webhook_certificate_reloaded");
}

#[test]
fn asked_to_end_it_ends_well() {
    for signal in ["-TERM", "-INT"] {
        let scene = Scene::new("end");
        scene.certify();
        let running = Running::start(&scene, &[]);
        running.signal(signal);
        let (status, said) = running.ended();
        assert!(status.success(), "{signal}: {status}, {said:?}");
        assert!(said.iter().any(|line| line.contains("\"shutdown\"")), "{said:?}");
    }
}

/// A client that connects and says nothing is nothing to wait for.
#[test]
fn a_connection_without_a_request_does_not_hold_up_the_end() {
    let scene = Scene::new("silent");
    scene.certify();
    let running = Running::start(&scene, &[]);
    let silent: Vec<_> =
        (0..3).map(|_| std::net::TcpStream::connect(&running.webhook).expect("a connection")).collect();
    running.signal("-TERM");
    let (status, said) = running.ended();
    assert!(status.success(), "{status}, {said:?}");
    drop(silent);
}

#[test]
fn told_twice_it_ends_at_once() {
    let scene = Scene::new("twice");
    let authority = scene.certify();
    let running = Running::start(&scene, &[]);
    std::thread::scope(|threads| {
        // The API server does not answer, so this review is under way for a while.
        let review = threads.spawn(|| scene.review(&running, &authority, "CREATE"));
        running.until("a review under way", || {
            ask(&running.metrics, "/metrics").contains("inferencecache_webhook_reviews_in_flight 1")
        });
        running.signal("-TERM");
        running.said("shutdown");
        running.signal("-TERM");
        running.until("gone", || std::net::TcpStream::connect(&running.webhook).is_err());
        review.join().expect("a thread").expect_err("it was cut off");
    });
    let (status, said) = running.ended();
    assert_eq!(status.code(), Some(1), "{said:?}");
}
