//! Where the target is and how it is spoken to.

use std::fmt;
use std::path::{Path, PathBuf};

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use pb_contract::Nanos;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::LoadError;
use crate::secrets::Secrets;

/// Headers that say how a message is framed or whom it is for, which is this client's to say.
const FRAMING: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Limits of a request around a run, which measures nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlLimits {
    /// For the connection, TLS included.
    pub connect_ns: Nanos,
    /// For the whole request, the connection included.
    pub total_ns: Nanos,
}

impl Default for ControlLimits {
    /// 30 s and 300 s.
    fn default() -> Self {
        ControlLimits {
            connect_ns: Nanos::from_secs(30),
            total_ns: Nanos::from_secs(300),
        }
    }
}

/// The version of HTTP that a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HttpVersion {
    /// HTTP/1.1.
    #[default]
    #[serde(rename = "1.1")]
    Http1,
    /// HTTP/2: by prior knowledge without TLS, by ALPN with it. One request at a time on each
    /// connection, so that no stream waits for another one's bytes.
    #[serde(rename = "2")]
    Http2,
}

impl fmt::Display for HttpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HttpVersion::Http1 => "HTTP/1.1",
            HttpVersion::Http2 => "HTTP/2",
        })
    }
}

/// An OpenAI-compatible server: host, port, path prefix, model, key, and what every request
/// carries.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    secure: bool,
    host: String,
    port: u16,
    prefix: String,
    model: Option<String>,
    api_key: Option<String>,
    route: Option<String>,
    headers: Vec<(HeaderName, HeaderValue)>,
    extra_body: Map<String, Value>,
    http_version: HttpVersion,
    root_file: Option<PathBuf>,
    connections: Option<usize>,
    control_limits: ControlLimits,
    /// The key and the values of headers, as servers may repeat them.
    secrets: Secrets,
}

impl Endpoint {
    /// From a base URL such as `http://127.0.0.1:8000`; a path is kept as a prefix, a final `/v1`
    /// is dropped because the routes name it themselves.
    ///
    /// # Errors
    /// Anything but an `http` or `https` address; the message says what to write instead.
    pub fn parse(base_url: &str) -> Result<Endpoint, LoadError> {
        let bad = |reason: &str| LoadError::Url {
            url: base_url.to_owned(),
            reason: reason.to_owned(),
        };
        let uri: Uri = base_url
            .parse()
            .map_err(|_| bad("not a URL: write it as http://HOST:PORT"))?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad("the scheme is missing: write it as http://HOST:PORT")),
        };
        if uri.query().is_some() {
            return Err(bad("a base URL has no query: remove what follows the `?`"));
        }
        let user = uri.authority().is_some_and(|a| a.as_str().contains('@'));
        if user {
            // The URL itself is not repeated: it may hold a password.
            return Err(LoadError::Url {
                url: format!("{}://(hidden)", if secure { "https" } else { "http" }),
                reason: "a base URL has no user: give the key as the API key".to_owned(),
            });
        }
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| bad("the host is missing: write it as http://HOST:PORT"))?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let port = match authority.get(host.len()..).unwrap_or_default() {
            "" => Some(if secure { 443 } else { 80 }),
            rest => rest.strip_prefix(':').and_then(|port| port.parse().ok()),
        };
        let port = port.filter(|&port| port > 0);
        let port = port.ok_or_else(|| bad("the port must be a number from 1 to 65535"))?;
        let path = uri.path().trim_end_matches('/');
        Ok(Endpoint {
            secure,
            host: host.to_owned(),
            port,
            prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
            model: None,
            api_key: None,
            route: None,
            headers: Vec::new(),
            extra_body: Map::new(),
            http_version: HttpVersion::default(),
            root_file: None,
            connections: None,
            control_limits: ControlLimits::default(),
            secrets: Secrets::default(),
        })
    }

    /// With the model name that requests carry.
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// With a key that goes into the `Authorization` header and nowhere else: what the server
    /// says is searched for it ([`Secrets`]).
    ///
    /// # Errors
    /// A key with a character that no header may have; the message does not repeat the key.
    pub fn with_api_key(mut self, key: impl Into<String>) -> Result<Self, LoadError> {
        let key = key.into();
        let wrong = key.chars().position(|c| !c.is_ascii_graphic());
        if let Some(position) = wrong {
            let reason = format!(
                "its character {} is a blank, a line end or no ASCII: write the key alone",
                position + 1
            );
            return Err(LoadError::Key { reason });
        }
        self.secrets = self.secrets.with_key(&key);
        self.api_key = Some(key);
        Ok(self)
    }

    /// With another route for measured requests than the usual one of their API.
    ///
    /// # Errors
    /// A route that does not begin with `/`, or has a character that a path may not have.
    pub fn with_route(mut self, route: impl Into<String>) -> Result<Self, LoadError> {
        let route = route.into();
        let bad = |reason: String| LoadError::Route {
            route: route.clone(),
            reason,
        };
        if !route.starts_with('/') {
            return Err(bad("must begin with /, as in /v1/completions".to_owned()));
        }
        // A fragment would be left out without a word.
        let wrong = |c: char| !c.is_ascii_graphic() || "\"#<>\\^`{|}".contains(c);
        if let Some(c) = route.chars().find(|&c| wrong(c)) {
            return Err(bad(format!(
                "the character {c:?} may not be in a path: write it percent-encoded"
            )));
        }
        let uri: Result<Uri, _> = self.path(&route).parse();
        if let Err(error) = uri {
            return Err(bad(format!("is no path: {error}")));
        }
        self.route = Some(route);
        Ok(self)
    }

    /// With a header on every request, in place of one of the same name. What the server says is
    /// searched for its value ([`Secrets`]).
    ///
    /// # Errors
    /// A name or a value that HTTP does not allow, or a header that frames the message.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self, LoadError> {
        let bad = |reason: String| LoadError::Header {
            name: name.to_owned(),
            reason,
        };
        let parsed_name: HeaderName = name.trim().parse().map_err(|_| {
            let rule = "a name has letters, digits and `-` only: write it as NAME: VALUE";
            bad(rule.to_owned())
        })?;
        if FRAMING.contains(&parsed_name.as_str()) {
            let why = "says how requests are framed or where they go, which the client sets \
                       itself: leave it out";
            return Err(bad(why.to_owned()));
        }
        let mut parsed_value = HeaderValue::from_str(value.trim())
            .map_err(|_| bad("the value has a character that HTTP does not allow".to_owned()))?;
        self.secrets = self.secrets.with_header(parsed_name.as_str(), value.trim());
        // Headers may carry keys: none is printed.
        parsed_value.set_sensitive(true);
        self.headers.retain(|(present, _)| *present != parsed_name);
        self.headers.push((parsed_name, parsed_value));
        Ok(self)
    }

    /// With other limits of requests around a run.
    pub fn with_control_limits(mut self, limits: ControlLimits) -> Self {
        self.control_limits = limits;
        self
    }

    /// With the limits of `other`, and hiding its key and its header values in what this one's
    /// server says: for a second address of the same target.
    pub fn beside(mut self, other: &Endpoint) -> Self {
        self.control_limits = other.control_limits;
        self.secrets = self.secrets.and(&other.secrets);
        self
    }

    /// With fields that are added to the body of every measured request, in place of its own
    /// fields of the same name; a null removes the field.
    pub fn with_extra_body(mut self, fields: Map<String, Value>) -> Self {
        self.extra_body = fields;
        self
    }

    /// With another version of HTTP than 1.1.
    pub fn with_http_version(mut self, version: HttpVersion) -> Self {
        self.http_version = version;
        self
    }

    /// With a PEM file of root certificates that are trusted beside Mozilla's.
    pub fn with_root_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.root_file = Some(path.into());
        self
    }

    /// With so many connections made before a run, instead of as many as it will need for sure.
    pub fn with_connections(mut self, connections: usize) -> Self {
        self.connections = Some(connections);
        self
    }

    /// The model name that requests carry.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Whether the connection is encrypted.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// The version of HTTP.
    pub fn http_version(&self) -> HttpVersion {
        self.http_version
    }

    /// Host and port as a `Host` header has them.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Host (without the brackets of an IPv6 address) and port, for connecting.
    pub(crate) fn address(&self) -> (&str, u16) {
        let host = self
            .host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        (host.unwrap_or(&self.host), self.port)
    }

    /// The path of a route such as `/v1/completions`.
    pub fn path(&self, route: &str) -> String {
        format!("{}{route}", self.prefix)
    }

    /// The whole URL of a route.
    pub fn url(&self, route: &str) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.path(route))
    }

    /// The route of measured requests, unless it is the usual one of their API.
    pub fn route(&self) -> Option<&str> {
        self.route.as_deref()
    }

    /// The key and the header values, to be hidden in texts.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    pub(crate) fn control_limits(&self) -> ControlLimits {
        self.control_limits
    }

    pub(crate) fn api_key(&self) -> Option<&str> {
        self.api_key.as_deref()
    }

    pub(crate) fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers
    }

    pub(crate) fn extra_body(&self) -> &Map<String, Value> {
        &self.extra_body
    }

    pub(crate) fn root_file(&self) -> Option<&Path> {
        self.root_file.as_deref()
    }

    pub(crate) fn connections(&self) -> Option<usize> {
        self.connections
    }
}

/// Neither the key nor a header's value is ever printed.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("url", &self.url(""))
            .field("http_version", &self.http_version)
            .field("model", &self.model)
            .field("has_api_key", &self.api_key.is_some())
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_people_write_them() {
        let local = "http://127.0.0.1:8000/v1/completions";
        for (text, url) in [
            ("http://127.0.0.1:8000", local),
            ("http://127.0.0.1:8000/", local),
            ("http://127.0.0.1:8000/v1/", local),
            ("http://host/a/b", "http://host:80/a/b/v1/completions"),
            ("http://[::1]:9", "http://[::1]:9/v1/completions"),
            ("https://host/v1", "https://host:443/v1/completions"),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().url("/v1/completions"), url);
        }
        assert_eq!(
            Endpoint::parse("http://[::1]:9").unwrap().address(),
            ("::1", 9)
        );
    }

    #[test]
    fn other_addresses_say_what_to_write() {
        for (text, part) in [
            ("ftp://h:1", "http://HOST:PORT"),
            ("127.0.0.1:8000", "http://HOST:PORT"),
            ("", "http://HOST:PORT"),
            ("http://h:1/?x=1", "no query"),
            ("http://me:secret@h:1", "no user"),
            ("http://h:99999", "from 1 to 65535"),
            ("http://h:65536", "from 1 to 65535"),
            ("http://h:abc", "from 1 to 65535"),
            ("http://h:", "from 1 to 65535"),
            ("http://h:0", "from 1 to 65535"),
            ("http://[::1]:99999", "from 1 to 65535"),
        ] {
            let message = Endpoint::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn headers_replace_and_wrong_ones_are_refused() {
        let endpoint = Endpoint::parse("http://h:1").unwrap();
        let endpoint = endpoint.with_header("X-A", "1").unwrap();
        let endpoint = endpoint.with_header("x-a", " 2 ").unwrap();
        assert_eq!(endpoint.headers().len(), 1);
        assert_eq!(endpoint.headers()[0].1, "2");
        for (name, value) in [("a b", "1"), ("", "1"), ("a", "1\n2")] {
            let error = endpoint.clone().with_header(name, value).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        // RFC 9110, sections 7.2, 7.6.1, 7.8, 8.6 and 10.1; RFC 9112, sections 6 and 9.
        for name in [
            "Host",
            "Content-Length",
            "Transfer-Encoding",
            "TE",
            "Trailer",
            "Connection",
            "Keep-Alive",
            "Proxy-Connection",
            "Upgrade",
            "Expect",
        ] {
            let error = endpoint.clone().with_header(name, "chunked").unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains(name) && error.contains("leave it out"),
                "{error}"
            );
        }
    }

    #[test]
    fn keys_and_routes_with_wrong_characters_are_refused_and_keys_not_repeated() {
        let endpoint = Endpoint::parse("http://h:1/p").unwrap();
        for key in [
            "hunter2\nx: y",
            "hunter2\r",
            "hunter2\u{e9}",
            "hunter2\0",
            "hunt er2",
        ] {
            let error = endpoint.clone().with_api_key(key).unwrap_err().to_string();
            assert!(error.contains("its character"), "{error}");
            assert!(!error.contains("hunt"), "{error}");
        }
        assert!(endpoint.clone().with_api_key("sk-AZ09_-.~+/=").is_ok());
        for route in [
            "v1",
            "",
            "/a b",
            "/a\r\nx: y",
            "/a#b",
            "/\u{e9}",
            "/a\\b",
            "/a\0",
        ] {
            let error = endpoint.clone().with_route(route).unwrap_err().to_string();
            assert!(error.contains("route"), "{error}");
        }
        for route in ["/v1/x", "/a?b=c&d=%20", "/a;b=c/~d:e@f!$'()*+,"] {
            let endpoint = endpoint.clone().with_route(route).unwrap();
            assert_eq!(endpoint.route(), Some(route));
        }
    }

    #[test]
    fn keys_are_not_printed() {
        let endpoint = Endpoint::parse("http://h:1")
            .unwrap()
            .with_api_key("hunter2")
            .unwrap()
            .with_header("x-key", "hunter3")
            .unwrap();
        assert!(!format!("{endpoint:?}").contains("hunter"));
    }
}
