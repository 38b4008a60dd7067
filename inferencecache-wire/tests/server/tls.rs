//! TLS from files: handshakes, replacements, refusals, and what either side is told.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use inferencecache_wire::tls::{ALPN_H2, ClientFiles, ClientTls, Leaf, Reload, ServerFiles, ServerTls, TlsError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use crate::certs::{Authority, Mount, Pair};

const HOST: &str = "cache.test";

/// What an observer heard, in words.
type Heard = Arc<Mutex<Vec<String>>>;

/// A serving side over a mount, and what it says about reloads.
struct Serving {
    tls: ServerTls,
    heard: Heard,
}

impl Serving {
    async fn over(files: ServerFiles) -> Result<Self, TlsError> {
        let heard = Heard::default();
        let listener = heard.clone();
        let observer = move |reload: Reload<'_, Option<Leaf>>| {
            listener.lock().expect("unpoisoned").push(match reload {
                Reload::Replaced(leaf) => format!("replaced {}", leaf.as_ref().expect("readable").serial),
                Reload::Refused(why) => format!("refused {}", why.full()),
                Reload::Restored => "restored".to_owned(),
                other => format!("{other:?}"),
            });
        };
        Ok(Self { tls: ServerTls::load(files, &[ALPN_H2], observer).await?, heard })
    }

    async fn of(mount: &Mount) -> Self {
        Self::over(files(mount, false)).await.expect("a good pair")
    }

    async fn mutual(mount: &Mount) -> Self {
        Self::over(files(mount, true)).await.expect("a good pair and bundle")
    }

    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.lock().expect("unpoisoned"))
    }

    /// Shakes hands, sends a byte through, and gives the serial that the client was shown, or why it was not.
    async fn meet(&self, client: &ClientTls) -> Result<String, String> {
        let (near, far) = tokio::io::duplex(16 * 1024);
        let accepting = async {
            let mut stream = self.tls.accept(far).await.map_err(|why| why.to_string())?;
            stream.write_all(b"x").await.map_err(|why| why.to_string())?;
            Ok::<_, String>(stream)
        };
        let connecting = async {
            let mut stream = client.connect(HOST, near).await.map_err(|why| full(&why))?;
            // In TLS 1.3 a client only learns with the first bytes that its certificate was refused.
            stream.read_u8().await.map_err(|why| full(&why))?;
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(ALPN_H2));
            let shown = stream.get_ref().1.peer_certificates().expect("shown")[0].clone();
            Ok(Leaf::of(&shown).expect("readable").serial)
        };
        let (accepted, connected) = tokio::join!(accepting, connecting);
        assert_eq!(accepted.is_ok(), connected.is_ok(), "{accepted:?} but {connected:?}");
        connected
    }
}

fn files(mount: &Mount, mutual: bool) -> ServerFiles {
    ServerFiles { cert: mount.cert(), key: mount.key(), client_ca: mutual.then(|| mount.ca()) }
}

fn full(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

async fn client(ca: &Path) -> ClientTls {
    client_as(ca, None, None).await
}

async fn client_as(ca: &Path, identity: Option<&Mount>, server_name: Option<&str>) -> ClientTls {
    let files = ClientFiles {
        ca: ca.to_owned(),
        identity: identity.map(|mount| (mount.cert(), mount.key())),
        server_name: server_name.map(str::to_owned),
    };
    ClientTls::load(files, &[ALPN_H2], |_| {}).await.expect("good files")
}

fn authority() -> (Authority, Pair, Mount) {
    let authority = Authority::new("first");
    let pair = authority.issue(HOST);
    let mount = Mount::new(&authority, &pair);
    (authority, pair, mount)
}

// === rotation ===

#[tokio::test]
async fn the_next_handshake_shows_a_replaced_pair_whatever_its_times() {
    // server:159
    let (authority, first, mount) = authority();
    let serving = Serving::of(&mount).await;
    let client = client(&mount.ca()).await;
    assert_eq!(serving.meet(&client).await, Ok(first.serial.clone()));
    assert_eq!(serving.tls.leaf().expect("readable").serial, first.serial);

    let times = [SystemTime::now() + Duration::from_secs(3600), SystemTime::UNIX_EPOCH + Duration::from_secs(1)];
    for time in times {
        let next = authority.issue(HOST);
        mount.replace(&next);
        for file in [mount.cert(), mount.key()] {
            std::fs::File::options().write(true).open(file).and_then(|file| file.set_modified(time)).expect("touched");
        }
        assert_eq!(serving.meet(&client).await, Ok(next.serial.clone()));
        assert_eq!(serving.heard(), [format!("replaced {}", next.serial)]);
    }
    assert_eq!(serving.meet(&client).await, Ok(serving.tls.leaf().expect("readable").serial));
    assert_eq!(serving.heard(), [""; 0], "nothing has changed since");
}

#[tokio::test]
async fn a_pair_replaced_in_halves_is_used_once_it_is_whole() {
    // field:51, the gRPC pair
    let (authority, first, mount) = authority();
    let serving = Serving::of(&mount).await;
    let client = client(&mount.ca()).await;
    let next = authority.issue(HOST);
    mount.put("tls.crt", &next.cert);
    for _ in 0..3 {
        assert_eq!(serving.meet(&client).await, Ok(first.serial.clone()));
    }
    let heard = serving.heard();
    assert_eq!(heard.len(), 1, "said once: {heard:?}");
    assert!(heard[0].contains("do not belong together"), "{heard:?}");
    mount.put("tls.key", &next.key);
    assert_eq!(serving.meet(&client).await, Ok(next.serial.clone()));
    assert_eq!(serving.heard(), [format!("replaced {}", next.serial)]);
}

#[tokio::test]
async fn a_corrupt_or_missing_replacement_keeps_the_old_pair() {
    // server:159
    let (_, first, mount) = authority();
    let serving = Serving::of(&mount).await;
    let client = client(&mount.ca()).await;
    let bad = [
        ("tls.crt", "not a certificate", "holds no PEM certificate"),
        ("tls.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be used"),
        ("tls.crt", &first.cert[..first.cert.len() / 2], "cannot be used"),
        ("tls.crt", "", "holds no PEM certificate"),
        ("tls.key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "cannot be used"),
        ("tls.key", &first.cert, "holds no unencrypted private key"),
    ];
    for (file, content, why) in bad {
        mount.put(file, content);
        assert_eq!(serving.meet(&client).await, Ok(first.serial.clone()), "{file}: {why}");
        let heard = serving.heard();
        assert!(heard.len() == 1 && heard[0].contains(why) && heard[0].contains(file), "{why}: {heard:?}");
        mount.replace(&first);
        assert_eq!(serving.meet(&client).await, Ok(first.serial.clone()));
        assert_eq!(serving.heard(), ["restored"]);
    }
    std::fs::remove_file(mount.key()).expect("removed");
    assert_eq!(serving.meet(&client).await, Ok(first.serial.clone()));
    assert!(serving.heard()[0].starts_with("refused cannot read"));
}

#[tokio::test]
async fn a_secret_swapped_by_its_link_is_followed() {
    let (authority, first, mount) = authority();
    // As the kubelet does it: tls.crt -> ..data/tls.crt, ..data -> a directory per version.
    let version = |name: &str, pair: &Pair| {
        let dir = mount.path(name);
        std::fs::create_dir(&dir).expect("made");
        std::fs::write(dir.join("tls.crt"), &pair.cert).expect("written");
        std::fs::write(dir.join("tls.key"), &pair.key).expect("written");
        let link = mount.path("..fresh");
        std::os::unix::fs::symlink(&dir, &link).expect("linked");
        std::fs::rename(link, mount.path("..data")).expect("renamed");
    };
    version("..1", &first);
    for file in ["tls.crt", "tls.key"] {
        std::fs::remove_file(mount.path(file)).expect("removed");
        std::os::unix::fs::symlink(format!("..data/{file}"), mount.path(file)).expect("linked");
    }
    let serving = Serving::of(&mount).await;
    let client = client(&mount.ca()).await;
    assert_eq!(serving.meet(&client).await, Ok(first.serial.clone()));
    let next = authority.issue(HOST);
    version("..2", &next);
    assert_eq!(serving.meet(&client).await, Ok(next.serial));
    assert_eq!(serving.heard().len(), 1);
}

#[tokio::test]
async fn an_open_connection_keeps_what_it_began_with() {
    let (authority, _, mount) = authority();
    let serving = Serving::of(&mount).await;
    let client = client(&mount.ca()).await;
    let (near, far) = tokio::io::duplex(1024);
    let (accepted, connected) = tokio::join!(serving.tls.accept(far), client.connect(HOST, near));
    let (mut accepted, mut connected) = (accepted.expect("accepted"), connected.expect("connected"));
    mount.replace(&authority.issue(HOST));
    serving.tls.check().await;
    assert_eq!(serving.heard().len(), 1, "noticed without a handshake");
    connected.write_all(b"still here").await.expect("sent");
    let mut got = [0; 10];
    accepted.read_exact(&mut got).await.expect("received");
    assert_eq!(&got, b"still here");
}

// === what a client is told ===

#[tokio::test]
async fn a_server_that_is_not_who_it_should_be_is_refused_by_name_time_and_authority() {
    let (authority, _, mount) = authority();
    let serving = Serving::of(&mount).await;
    let wrong_name = client_as(&mount.ca(), None, Some("other.test")).await;
    let why = serving.meet(&wrong_name).await.expect_err("another name");
    assert!(why.contains("handshake with other.test failed") && why.contains("not valid for name"), "{why}");

    let stranger = Authority::new("stranger");
    let strange = Mount::new(&stranger, &stranger.issue(HOST));
    let why = serving.meet(&client(&strange.ca()).await).await.expect_err("another authority");
    assert!(why.contains("UnknownIssuer") || why.contains("unknown issuer"), "{why}");

    let old = Mount::new(&authority, &authority.issue_until(HOST, 2020));
    let serving = Serving::of(&old).await;
    let why = serving.meet(&client(&mount.ca()).await).await.expect_err("expired");
    assert!(why.contains("expired"), "{why}");
    assert_eq!(serving.tls.leaf().expect("readable").not_after, 1_577_836_800);
    // Whatever follows it is no worse.
    let other = authority.issue_between("other.test", 2090, 2099);
    old.replace(&other);
    serving.meet(&client(&mount.ca()).await).await.expect_err("not yet valid");
    assert_eq!(serving.tls.leaf().expect("readable").serial, other.serial);
}

#[tokio::test]
async fn a_replacement_that_clients_would_refuse_keeps_the_old_pair() {
    let (authority, first, mount) = authority();
    let (serving, client) = (Serving::of(&mount).await, client(&mount.ca()).await);
    for (bad, why) in [
        (authority.issue_until(HOST, 2020), "it expired at 1577836800"),
        (authority.issue_between(HOST, 2090, 2099), "it is not valid before 3786912000"),
        (authority.issue("other.test"), "it is for \"other.test\" and none of \"cache.test\""),
    ] {
        mount.replace(&bad);
        assert_eq!(serving.meet(&client).await, Ok(first.serial.clone()), "{why}");
        let heard = serving.heard();
        assert!(matches!(&heard[..], [one] if one.contains(why) && one.contains("does not replace")), "{heard:?}");
    }
    let next = authority.issue(HOST);
    mount.replace(&next);
    assert_eq!(serving.meet(&client).await, Ok(next.serial.clone()));
    assert_eq!(serving.heard(), [format!("replaced {}", next.serial)]);
}

#[tokio::test]
async fn a_client_can_ask_for_another_name_than_it_dials() {
    let (_, _, mount) = authority();
    let serving = Serving::of(&mount).await;
    let tls = client_as(&mount.ca(), None, Some(HOST)).await;
    let (near, far) = tokio::io::duplex(1024);
    let (accepted, connected) = tokio::join!(serving.tls.accept(far), tls.connect("127.0.0.1", near));
    accepted.expect("accepted");
    connected.expect("connected");
}

// === mutual TLS ===

#[tokio::test]
async fn mutual_tls_takes_certificates_of_its_authorities_and_no_others() {
    let (authority, pair, mount) = authority();
    let serving = Serving::mutual(&mount).await;
    let good = Mount::new(&authority, &authority.issue("gateway"));
    assert_eq!(serving.meet(&client_as(&mount.ca(), Some(&good), None).await).await, Ok(pair.serial));

    let why = serving.meet(&client(&mount.ca()).await).await.expect_err("no certificate");
    assert!(why.contains("CertificateRequired"), "{why}");

    let stranger = Authority::new("stranger");
    let strange = Mount::new(&stranger, &stranger.issue("gateway"));
    serving.meet(&client_as(&mount.ca(), Some(&strange), None).await).await.expect_err("another authority");

    let old = Mount::new(&authority, &authority.issue_until("gateway", 2020));
    serving.meet(&client_as(&mount.ca(), Some(&old), None).await).await.expect_err("expired");
}

#[tokio::test]
async fn a_replaced_bundle_decides_about_the_next_client() {
    let (authority, _, mount) = authority();
    let trusted = mount.path("trusted.crt");
    std::fs::copy(mount.ca(), &trusted).expect("copied");
    let serving = Serving::mutual(&mount).await;
    let old = Mount::new(&authority, &authority.issue("gateway"));
    let second = Authority::new("second");
    let new = Mount::new(&second, &second.issue("gateway"));
    let (old, new) = (client_as(&trusted, Some(&old), None).await, client_as(&trusted, Some(&new), None).await);
    serving.meet(&old).await.expect("trusted");
    serving.meet(&new).await.expect_err("not yet trusted");

    mount.put("ca.crt", &format!("{}{}", authority.pem, second.pem));
    serving.meet(&old).await.expect("both are trusted");
    serving.meet(&new).await.expect("both are trusted");
    mount.put("ca.crt", "");
    serving.meet(&new).await.expect("a broken bundle changes nothing");
    mount.put("ca.crt", &second.pem);
    serving.meet(&new).await.expect("trusted");
    serving.meet(&old).await.expect_err("no longer trusted, resumption or not");
    let heard = serving.heard();
    assert_eq!(heard.len(), 3, "{heard:?}");
    assert!(heard[1].contains("ca.crt holds no PEM certificate"), "{heard:?}");
}

#[tokio::test]
async fn a_client_follows_its_own_files() {
    let (first, _, server_mount) = authority();
    let serving = Serving::mutual(&server_mount).await;
    let mount = Mount::new(&first, &Authority::new("stranger").issue("gateway"));
    let client = client_as(&mount.ca(), Some(&mount), None).await;
    serving.meet(&client).await.expect_err("a stranger's certificate");
    mount.replace(&first.issue("gateway"));
    serving.meet(&client).await.expect("the new one is shown");

    let second = Authority::new("second");
    server_mount.replace(&second.issue(HOST));
    serving.meet(&client).await.expect_err("not yet trusted");
    mount.put("ca.crt", &second.pem);
    serving.meet(&client).await.expect("the new authority is believed");
}

// === protocol ===

/// What a server answers to raw bytes, until it hangs up.
async fn answer(serving: &Serving, hello: &[u8]) -> Vec<u8> {
    let (mut near, far): (DuplexStream, DuplexStream) = tokio::io::duplex(16 * 1024);
    near.write_all(hello).await.expect("sent");
    let accepted = serving.tls.accept(far).await;
    accepted.expect_err("no handshake");
    let mut answer = Vec::new();
    near.read_to_end(&mut answer).await.expect("hung up");
    answer
}

/// The first message of a client that speaks `version` at most.
fn client_hello(version: [u8; 2]) -> Vec<u8> {
    let mut body = vec![version[0], version[1]];
    body.extend([7; 32]); // random
    body.push(0); // no session
    body.extend([0, 4, 0xc0, 0x2f, 0xc0, 0x13]); // two suites
    body.extend([1, 0]); // no compression
    let extensions = [0, 10, 0, 4, 0, 2, 0, 23, 0, 11, 0, 2, 1, 0, 0, 13, 0, 4, 0, 2, 4, 3];
    body.extend([0, extensions.len() as u8]);
    body.extend(extensions);
    let mut hello = vec![22, 3, 1, 0, body.len() as u8 + 4, 1, 0, 0, body.len() as u8];
    hello.extend(body);
    hello
}

#[tokio::test]
async fn tls_1_1_is_refused_and_plaintext_is_no_tls() {
    const FATAL_PROTOCOL_VERSION: [u8; 2] = [2, 70];
    let (_, _, mount) = authority();
    let serving = Serving::of(&mount).await;
    assert_eq!(answer(&serving, &client_hello([3, 2])).await[5..], FATAL_PROTOCOL_VERSION);
    let refused = answer(&serving, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert_eq!(refused.first(), Some(&21), "an alert at most: {refused:?}");
    assert!(refused.len() == 7, "{refused:?}");
}

#[tokio::test]
async fn a_client_that_speaks_no_http2_is_refused() {
    let (_, _, mount) = authority();
    let serving = Serving::of(&mount).await;
    let files = ClientFiles { ca: mount.ca(), identity: None, server_name: None };
    let client = ClientTls::load(files, &[b"http/1.1"], |_| {}).await.expect("good files");
    let why = serving.meet(&client).await.expect_err("no common protocol");
    assert!(why.contains("NoApplicationProtocol"), "{why}");
}

// === first load ===

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    // server:156
    let (authority, pair, mount) = authority();
    let other = authority.issue(HOST);
    let cases = [
        ("tls.crt", None, "cannot read"),
        ("tls.key", None, "cannot read"),
        ("tls.key", Some(other.key.as_str()), "do not belong together"),
        ("tls.crt", Some(pair.key.as_str()), "holds no PEM certificate"),
        ("ca.crt", Some("nothing"), "holds no PEM certificate"),
    ];
    for (file, content, why) in cases {
        match content {
            Some(content) => mount.put(file, content),
            None => std::fs::remove_file(mount.path(file)).expect("removed"),
        }
        let refused = Serving::over(files(&mount, true)).await.err().expect("refused").full();
        assert!(refused.contains(why) && refused.contains(file), "{file}: {refused}");
        mount.replace(&pair);
        mount.put("ca.crt", &authority.pem);
    }
    std::fs::write(mount.cert(), vec![b'x'; 1024 * 1024 + 1]).expect("written");
    let refused = Serving::over(files(&mount, false)).await.err().expect("refused");
    assert!(matches!(refused, TlsError::TooLarge { .. }), "{refused}");
    std::fs::remove_file(mount.cert()).expect("removed");
    let directory = ServerFiles { cert: mount.dir().to_owned(), key: mount.key(), client_ca: None };
    let refused = Serving::over(directory).await.err().expect("refused");
    assert!(matches!(refused, TlsError::Read { .. }), "{refused}");
    let pipe = mount.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let unfinished = Serving::over(ServerFiles { cert: pipe, key: mount.key(), client_ca: None });
    let waited = tokio::time::timeout(Duration::from_secs(10), unfinished).await.expect("nobody writes to it");
    let refused = waited.err().expect("refused").full();
    assert!(refused.contains("pipe: not a regular file"), "{refused}");
    let files = ClientFiles { ca: mount.ca(), identity: None, server_name: Some("not a name".to_owned()) };
    let refused = ClientTls::load(files, &[], |_| {}).await.expect_err("refused");
    assert_eq!(refused.to_string(), "\"not a name\" is neither a DNS name nor an IP address");
}
