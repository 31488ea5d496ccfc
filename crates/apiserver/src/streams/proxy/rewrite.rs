//! Links that lead through the proxy again.

use std::net::SocketAddr;

use html5gum::{
    Span, Tokenizer,
    emitters::callback::{CallbackEmitter, CallbackEvent},
};
use http::Uri;

/// The attributes of elements that are links.
const LINKS: [(&str, &[&str]); 25] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["formaction", "src", "usemap"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// What the links of an answer are understood by.
pub(super) struct Links {
    /// The path of the proxy itself.
    pub(super) prefix: String,
    /// Where the answer came from.
    pub(super) target: SocketAddr,
    /// What the client calls the server.
    pub(super) host: String,
}

impl Links {
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
        // What a browser takes for another host is none here either.
        if path.starts_with("//") {
            return link.to_owned();
        }
        let origin = match host {
            Some(host) if host == self.host => &link[..link.len() - path.len()],
            _ => "",
        };
        if path.starts_with(&self.prefix) {
            return format!("{origin}{path}");
        }
        format!("{origin}{}{path}", self.prefix)
    }

    /// A page whose links a client of the proxy can follow. All else in it stays to the letter.
    pub(super) fn rewrite_page(&self, page: &str) -> String {
        let mut element: &[&str] = &[];
        let mut is_link = false;
        let found = |event: CallbackEvent<'_>, span: Span| -> Option<Span> {
            match event {
                CallbackEvent::OpenStartTag { name } => {
                    let known = LINKS.iter().find(|(element, _)| element.as_bytes() == name);
                    element = known.map_or(&[], |(_, attributes)| attributes);
                }
                CallbackEvent::AttributeName { name } => {
                    is_link = element.iter().any(|attribute| attribute.as_bytes() == name);
                }
                CallbackEvent::AttributeValue { .. } if is_link => return Some(span),
                _ => {}
            }
            None
        };
        let mut emitter = CallbackEmitter::new(found);
        emitter.naively_switch_states(true);
        let mut written = String::with_capacity(page.len());
        let mut done = 0;
        for span in Tokenizer::new_with_emitter(page, emitter) {
            let Ok(Span { start, end }) = span;
            // As it was written: what is escaped in it lies behind what changes.
            if let (Some(before), Some(link)) = (page.get(done..start), page.get(start..end)) {
                written.push_str(before);
                written.push_str(&self.rewrite(link));
                done = end;
            }
        }
        written.push_str(&page[done..]);
        written
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

    fn links() -> Links {
        Links {
            prefix: "/api/v1/namespaces/n/pods/p/proxy".to_owned(),
            target: "10.0.0.5:8080".parse().unwrap(),
            host: "localhost:8001".to_owned(),
        }
    }

    #[test]
    fn the_links_of_a_page_lead_through_the_proxy_and_nothing_else_changes() {
        let page = concat!(
            "<!DOCTYPE html><html manifest='/m'><!-- <a href=\"/c\"> --><p title=\"/t\">é &amp; /p</p>\n",
            "<A HREF=\"/rewriteme\">test</A> <img alt='/x' src=/i.png?a=1&amp;b=2><a href=\"other\">o</a>",
            "<a href='http://10.0.0.5:8080/there'>t</a><a href=\"//example.org/e\">e</a><a href=\"\">n</a>",
            "<script>let link = '<a href=\"/s\">';</script><a href='/unfinished"
        );
        let prefix = "/api/v1/namespaces/n/pods/p/proxy";
        let mut expected = page.to_owned();
        for link in ["/m'", "/rewriteme\"", "/i.png"] {
            expected = expected.replacen(link, &format!("{prefix}{link}"), 1);
        }
        expected = expected.replace("http://10.0.0.5:8080/there", &format!("{prefix}/there"));
        assert_eq!(links().rewrite_page(page), expected);
    }

    #[test]
    fn links_to_the_target_lead_through_the_proxy() {
        let links = links();
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
