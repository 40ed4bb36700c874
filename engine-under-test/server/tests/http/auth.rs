//! Who may ask what.

use serde_json::json;

use crate::client::{request, send};
use crate::fake_core::{FakeCore, Stage, tokens};
use crate::fake_text::FakeText;
use crate::setup::{options, start};

#[tokio::test]
async fn every_path_but_health_wants_the_key() {
    let stage = Stage::new(None);
    let core = FakeCore::new(&stage, |_| tokens(&[0]));
    let options = pb_server::ServerOptions {
        api_key: Some("secret".to_owned()),
        ..options()
    };
    assert!(!format!("{options:?}").contains("secret"));
    let server = start(core, FakeText::new(&["x"]), options).await;
    let body = json!({ "prompt": "x", "max_tokens": 1 }).to_string();
    let paths = [
        ("POST", "/v1/completions", 200),
        ("POST", "/tokenize", 200),
        ("POST", "/reset_prefix_cache", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/metrics", 200),
        ("GET", "/server_info", 200),
    ];
    for (method, path, good) in paths {
        let wrong = [
            "",
            "authorization: Bearer secre\r\n",
            "authorization: Bearer secret2\r\n",
            "authorization: Basic secret\r\n",
            "authorization: secret\r\n",
        ];
        for header in wrong {
            let reply = send(server.addr, &request(method, path, header, body.as_bytes())).await;
            assert_eq!(reply.status, 401, "{path} {header}");
            assert_eq!(reply.error()["type"], "AuthenticationError");
            assert_eq!(reply.error()["code"], 401);
        }
        let header = "authorization: Bearer secret\r\n";
        let reply = send(server.addr, &request(method, path, header, body.as_bytes())).await;
        assert_eq!(reply.status, good, "{path}");
    }
    assert_eq!(
        send(server.addr, &request("GET", "/health", "", b""))
            .await
            .status,
        200
    );
    server.shut_down().await;
}
