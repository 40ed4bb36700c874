//! Where the target is and how it is spoken to.

use std::fmt;
use std::path::{Path, PathBuf};

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::LoadError;

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
        })
    }

    /// With the model name that requests carry.
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// With a key that goes into the `Authorization` header and nowhere else.
    pub fn with_api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// With another route for measured requests than the usual one of their API.
    pub fn with_route(mut self, route: impl Into<String>) -> Self {
        self.route = Some(route.into());
        self
    }

    /// With a header on every request, in place of one of the same name.
    ///
    /// # Errors
    /// A name or a value that HTTP does not allow.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self, LoadError> {
        let bad = |reason: String| LoadError::Header {
            name: name.to_owned(),
            reason,
        };
        let parsed_name: HeaderName = name.trim().parse().map_err(|_| {
            let rule = "a name has letters, digits and `-` only: write it as NAME: VALUE";
            bad(rule.to_owned())
        })?;
        let mut parsed_value = HeaderValue::from_str(value.trim())
            .map_err(|_| bad("the value has a character that HTTP does not allow".to_owned()))?;
        // Headers may carry keys: none is printed.
        parsed_value.set_sensitive(true);
        self.headers.retain(|(present, _)| *present != parsed_name);
        self.headers.push((parsed_name, parsed_value));
        Ok(self)
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
    }

    #[test]
    fn keys_are_not_printed() {
        let endpoint = Endpoint::parse("http://h:1")
            .unwrap()
            .with_api_key("hunter2")
            .with_header("x-key", "hunter3")
            .unwrap();
        assert!(!format!("{endpoint:?}").contains("hunter"));
    }
}
