//! Where the target is.

use std::fmt;

use hyper::Uri;

use crate::error::LoadError;

/// An OpenAI-compatible server: host, port, path prefix, model, key.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
    prefix: String,
    model: Option<String>,
    api_key: Option<String>,
}

impl Endpoint {
    /// From a base URL such as `http://127.0.0.1:8000`; a path is kept as a prefix, a final `/v1`
    /// is dropped because the routes name it themselves.
    ///
    /// # Errors
    /// Anything but a plain `http` address; the message says what to write instead.
    pub fn parse(base_url: &str) -> Result<Endpoint, LoadError> {
        let bad = |reason: &str| LoadError::Url {
            url: base_url.to_owned(),
            reason: reason.to_owned(),
        };
        let uri: Uri = base_url
            .parse()
            .map_err(|_| bad("not a URL: write it as http://HOST:PORT"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(bad(
                    "https is not supported: measure over http, without a TLS proxy",
                ));
            }
            _ => return Err(bad("the scheme is missing: write it as http://HOST:PORT")),
        }
        if uri.query().is_some() {
            return Err(bad("a base URL has no query: remove what follows the `?`"));
        }
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| bad("the host is missing: write it as http://HOST:PORT"))?;
        let path = uri.path().trim_end_matches('/');
        Ok(Endpoint {
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(80),
            prefix: path.strip_suffix("/v1").unwrap_or(path).to_owned(),
            model: None,
            api_key: None,
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

    /// The model name that requests carry.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
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
        format!("http://{}{}", self.authority(), self.path(route))
    }

    pub(crate) fn api_key(&self) -> Option<&str> {
        self.api_key.as_deref()
    }
}

/// The key is never printed.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("url", &self.url(""))
            .field("model", &self.model)
            .field("has_api_key", &self.api_key.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_people_write_them() {
        for (text, url) in [
            (
                "http://127.0.0.1:8000",
                "http://127.0.0.1:8000/v1/completions",
            ),
            (
                "http://127.0.0.1:8000/",
                "http://127.0.0.1:8000/v1/completions",
            ),
            (
                "http://127.0.0.1:8000/v1/",
                "http://127.0.0.1:8000/v1/completions",
            ),
            ("http://host/a/b", "http://host:80/a/b/v1/completions"),
            ("http://[::1]:9", "http://[::1]:9/v1/completions"),
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
            ("https://h:1", "https is not supported"),
            ("127.0.0.1:8000", "http://HOST:PORT"),
            ("", "http://HOST:PORT"),
            ("http://h:1/?x=1", "no query"),
        ] {
            let message = Endpoint::parse(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        let endpoint = Endpoint::parse("http://h:1")
            .unwrap()
            .with_api_key("hunter2");
        assert!(!format!("{endpoint:?}").contains("hunter2"));
    }
}
