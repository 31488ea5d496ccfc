//! How a pod finds other hosts.

use moorline_machinery::names;

use super::super::{
    at::{At, Errors},
    text,
};

const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_CHARACTERS_MAX: usize = 2048;

pub(super) fn policy(spec: &At<'_>, errors: &mut Errors) {
    spec.at("dnsPolicy")
        .require_one_of(errors, &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]);
}

pub(super) fn config(config: &At<'_>, policy: &str, errors: &mut Errors) {
    let nameservers = config.at("nameservers");
    if policy == "None" {
        if !config.is_set() {
            config.missing(errors, "must provide `dnsConfig` when `dnsPolicy` is None");
            return;
        }
        if nameservers.items().is_empty() {
            nameservers.missing(
                errors,
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            );
            return;
        }
    }
    if !config.is_set() {
        return;
    }
    if nameservers.len() > NAMESERVERS_MAX {
        nameservers.invalid(errors, format!("must not have more than {NAMESERVERS_MAX} nameservers"));
    }
    nameservers.each(|server| server.follow(errors, text::address));
    searches(&config.at("searches"), errors);
    config.at("options").each(|option| {
        if option.at("name").text().is_empty() {
            option.missing(errors, "must not be empty");
        }
    });
}

fn searches(searches: &At<'_>, errors: &mut Errors) {
    if searches.len() > SEARCHES_MAX {
        searches.invalid(errors, format!("must not have more than {SEARCHES_MAX} search paths"));
    }
    let characters: usize = searches
        .items()
        .iter()
        .map(|path| path.as_str().map_or(0, str::len) + 1)
        .sum();
    if characters > SEARCH_CHARACTERS_MAX + 1 {
        searches.invalid(
            errors,
            format!("must not have more than {SEARCH_CHARACTERS_MAX} characters (including spaces) in the search list"),
        );
    }
    searches.each(|path| {
        // A lone dot is the root, and a trailing one makes a name absolute; underscores are common in service names.
        let name = path.text().strip_suffix('.').unwrap_or(path.text());
        if path.text() != "." {
            for complaint in text::underscored_subdomain(name) {
                path.invalid(errors, complaint);
            }
        }
    });
}

pub(super) fn host_aliases(aliases: &At<'_>, errors: &mut Errors) {
    aliases.each(|alias| {
        alias.at("ip").follow(errors, text::address);
        alias
            .at("hostnames")
            .each(|name| name.follow(errors, names::dns_subdomain));
    });
}
