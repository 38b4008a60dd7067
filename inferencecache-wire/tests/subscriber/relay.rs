//! A relay between a client and a server that can fall silent without closing anything.

use std::net::SocketAddr;

/// Forwards connections to an address until it is told to hold what it carries; new connections are forwarded.
pub(crate) async fn relay(to: SocketAddr) -> (SocketAddr, tokio::sync::watch::Sender<u32>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (holds, watch) = tokio::sync::watch::channel(0);
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let mut watch = watch.clone();
            watch.mark_unchanged();
            tokio::spawn(async move {
                let mut to = tokio::net::TcpStream::connect(to).await.unwrap();
                let copied = tokio::io::copy_bidirectional(&mut from, &mut to);
                tokio::select! {
                    _ = copied => {}
                    // Keeps both sockets open and carries nothing any more.
                    _ = watch.changed() => std::future::pending::<()>().await,
                }
            });
        }
    });
    (address, holds)
}
