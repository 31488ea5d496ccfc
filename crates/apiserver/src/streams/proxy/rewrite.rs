//! Links that lead through the proxy again.

use std::net::SocketAddr;

use http::Uri;

/// What the links of an answer are understood by.
pub(super) struct Links<'r> {
    /// The path of the proxy itself.
    pub(super) prefix: &'r str,
    /// Where the answer came from.
    pub(super) target: SocketAddr,
    /// What the client calls the server.
    pub(super) host: &'r str,
}

impl Links<'_> {
    /// A link as a client of the proxy can follow it: one to the target's own host gets the proxy's path in front; one
    /// to elsewhere, or relative to the page, stays as it is.
    pub(super) fn rewrite(&self, link: &str) -> String {
        let Ok(uri) = link.parse::<Uri>() else {
            return link.to_owned();
        };
        let host = uri.authority().map(http::uri::Authority::as_str);
        let is_ours =
            |host: &str| host == self.host || host == self.target.to_string() || self.is_default_port(&uri, host);
        if host.is_some_and(|host| !is_ours(host)) || !link_path(link, host).starts_with('/') {
            return link.to_owned();
        }
        let path = link_path(link, host);
        let origin = match host {
            Some(host) if host == self.host => &link[..link.len() - path.len()],
            _ => "",
        };
        if path.starts_with(self.prefix) {
            return format!("{origin}{path}");
        }
        format!("{origin}{}{path}", self.prefix)
    }

    /// Whether a host without a port is the target, whose port is the scheme's own.
    fn is_default_port(&self, uri: &Uri, host: &str) -> bool {
        let default = match uri.scheme_str() {
            Some("https") => 443,
            _ => 80,
        };
        self.target.port() == default && host == self.target.ip().to_string()
    }
}

/// The part of a link behind its host, with query and fragment.
fn link_path<'l>(link: &'l str, host: Option<&str>) -> &'l str {
    let Some(host) = host else { return link };
    let behind = link.find(host).map_or(0, |at| at + host.len());
    match &link[behind..] {
        "" => "/",
        path => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_the_target_lead_through_the_proxy() {
        let links = Links {
            prefix: "/api/v1/namespaces/n/pods/p/proxy",
            target: "10.0.0.5:8080".parse().unwrap(),
            host: "localhost:8001",
        };
        for (link, expected) in [
            ("/login?next=/", "/api/v1/namespaces/n/pods/p/proxy/login?next=/"),
            ("http://10.0.0.5:8080/a/", "/api/v1/namespaces/n/pods/p/proxy/a/"),
            (
                "http://localhost:8001/a",
                "http://localhost:8001/api/v1/namespaces/n/pods/p/proxy/a",
            ),
            ("other", "other"),
            ("http://example.org/a", "http://example.org/a"),
            (
                "/api/v1/namespaces/n/pods/p/proxy/a",
                "/api/v1/namespaces/n/pods/p/proxy/a",
            ),
        ] {
            assert_eq!(links.rewrite(link), expected, "{link}");
        }
    }
}
