//! The records, found by name.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{PoisonError, RwLock};

use hickory_proto::rr::rdata::{CNAME, NS, SOA, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use ipnet::IpNet;

use super::records::{Entry, ServiceNames, address_data, name, undashed};

/// How long an answer may be kept, in seconds. Endpoints move; asking again costs little on one machine.
const TTL: u32 = 5;

/// How many aliases are followed before a name is taken for a circle.
const MOST_ALIASES: usize = 8;

/// All names of an instance. Shared by whoever sets them and the server that tells them.
#[derive(Debug)]
pub struct Names {
    domain: String,
    /// Addresses whose reverse names nobody else knows.
    own: Vec<IpNet>,
    table: RwLock<Table>,
}

/// What is known about a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is not under our domain.
    NotOurs,
    /// There is no such name.
    NoName,
    /// The name is there, and has nothing of the type that was asked for.
    Nothing,
    /// These records.
    Records(Vec<Record>),
    /// It is an alias, by these records, of a name that is not ours.
    Elsewhere(Vec<Record>, Name),
}

#[derive(Debug, Default)]
struct Table {
    by_service: HashMap<(String, String), Vec<Entry>>,
    names: HashMap<String, Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    data: Vec<RData>,
    /// How many records are here and below; a name is there as long as there is one.
    count: usize,
}

impl Names {
    /// No names yet, under a domain such as `cluster.local`. Reverse names of the addresses in `own` are answered here
    /// alone.
    pub fn new(domain: &str, own: impl IntoIterator<Item = IpNet>) -> Self {
        let domain = domain.trim_matches('.').to_ascii_lowercase();
        let mut table = Table::default();
        let version = RData::TXT(TXT::new(vec!["1.1.0".into()]));
        table.add(&(format!("dns-version.{domain}"), version), &domain);
        Self {
            domain,
            own: own.into_iter().collect(),
            table: RwLock::new(table),
        }
    }

    /// The domain.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Sets the names of one service, in place of those it had.
    pub fn set_service(&self, service: &ServiceNames) {
        let (key, entries) = (service.key(), service.entries(&self.domain));
        self.table
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(key, entries, &self.domain);
    }

    /// Removes the names of one service.
    pub fn remove_service(&self, namespace: &str, service: &str) {
        let key = (namespace.to_ascii_lowercase(), service.to_ascii_lowercase());
        self.table
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(key, Vec::new(), &self.domain);
    }

    /// Makes these the services that have names, and no others.
    pub fn set_services<'a>(&self, services: impl IntoIterator<Item = &'a ServiceNames>) {
        let wanted: HashMap<_, _> = services
            .into_iter()
            .map(|service| (service.key(), service.entries(&self.domain)))
            .collect();
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<_> = table
            .by_service
            .keys()
            .filter(|key| !wanted.contains_key(*key))
            .cloned()
            .collect();
        for key in gone {
            table.replace(key, Vec::new(), &self.domain);
        }
        for (key, entries) in wanted {
            table.replace(key, entries, &self.domain);
        }
    }

    /// What is known about a name, following aliases while they stay ours.
    pub(super) fn look_up(&self, asked: &Name, kind: RecordType) -> Found {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let mut records = Vec::new();
        let mut at = asked.clone();
        for _ in 0..MOST_ALIASES {
            match self.look_up_once(&table, &at, kind) {
                Step::Data(data) => {
                    records.extend(data.into_iter().map(|data| Record::from_rdata(at.clone(), TTL, data)));
                    return Found::Records(records);
                }
                Step::Alias(target) => {
                    records.push(Record::from_rdata(at, TTL, RData::CNAME(CNAME(target.clone()))));
                    at = target;
                }
                Step::NotOurs if records.is_empty() => return Found::NotOurs,
                Step::NotOurs => return Found::Elsewhere(records, at),
                Step::NoName if records.is_empty() => return Found::NoName,
                Step::Nothing if records.is_empty() => return Found::Nothing,
                Step::NoName | Step::Nothing => return Found::Records(records),
            }
        }
        Found::Records(records)
    }

    /// Who speaks for the domain: what goes with an answer that there is nothing.
    pub(super) fn authority(&self) -> Record {
        let origin = self.origin();
        let server = name(&format!("ns.dns.{}", self.domain)).unwrap_or_else(|| origin.clone());
        let person = name(&format!("hostmaster.{}", self.domain)).unwrap_or_else(|| origin.clone());
        Record::from_rdata(
            origin,
            TTL,
            RData::SOA(SOA::new(server, person, 1, 7200, 1800, 86400, TTL)),
        )
    }

    fn origin(&self) -> Name {
        name(&self.domain).unwrap_or_default()
    }

    fn look_up_once(&self, table: &Table, asked: &Name, kind: RecordType) -> Step {
        let mut text = asked.to_lowercase().to_ascii();
        if text.ends_with('.') {
            text.pop();
        }
        if text == self.domain {
            return match kind {
                RecordType::SOA => Step::Data(vec![self.authority().data]),
                RecordType::NS => Step::Data(
                    name(&format!("ns.dns.{text}"))
                        .map(|ns| RData::NS(NS(ns)))
                        .into_iter()
                        .collect(),
                ),
                _ => Step::Nothing,
            };
        }
        let ours = text.strip_suffix(&self.domain).and_then(|rest| rest.strip_suffix('.'));
        if let Some(entries) = table.names.get(&text) {
            return entries.of_kind(kind);
        }
        match ours {
            Some(rest) => self.by_address(rest, kind),
            None if self.is_own_reverse(asked) => Step::NoName,
            None => Step::NotOurs,
        }
    }

    /// The names that pods have by their addresses, which nobody sets.
    fn by_address(&self, rest: &str, kind: RecordType) -> Step {
        let labels: Vec<&str> = rest.split('.').collect();
        let [address, _namespace, "pod"] = labels[..] else {
            return Step::NoName;
        };
        let Some(address) = undashed(address).filter(|address| self.is_own(*address)) else {
            return Step::NoName;
        };
        let data = address_data(address);
        if data.record_type() == kind || kind == RecordType::ANY {
            Step::Data(vec![data])
        } else {
            Step::Nothing
        }
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.own.iter().any(|range| range.contains(&address))
    }

    fn is_own_reverse(&self, asked: &Name) -> bool {
        asked
            .parse_arpa_name()
            .is_ok_and(|net| self.own.iter().any(|range| range.contains(&net)))
    }
}

enum Step {
    Data(Vec<RData>),
    Alias(Name),
    Nothing,
    NoName,
    NotOurs,
}

impl Entries {
    fn of_kind(&self, kind: RecordType) -> Step {
        let mut data: Vec<RData> = Vec::new();
        for item in &self.data {
            match item {
                RData::CNAME(CNAME(target)) if kind != RecordType::CNAME && kind != RecordType::ANY => {
                    return Step::Alias(target.clone());
                }
                // Two services, or two ports, may say the same.
                item if (item.record_type() == kind || kind == RecordType::ANY) && !data.contains(item) => {
                    data.push(item.clone());
                }
                _ => {}
            }
        }
        if data.is_empty() {
            Step::Nothing
        } else {
            Step::Data(data)
        }
    }
}

impl Table {
    fn replace(&mut self, key: (String, String), entries: Vec<Entry>, domain: &str) {
        if self.by_service.get(&key).is_some_and(|there| *there == entries) {
            return;
        }
        for entry in self.by_service.remove(&key).unwrap_or_default() {
            self.remove(&entry, domain);
        }
        for entry in &entries {
            self.add(entry, domain);
        }
        if !entries.is_empty() {
            self.by_service.insert(key, entries);
        }
    }

    fn add(&mut self, (name, data): &Entry, domain: &str) {
        for ancestor in with_ancestors(name, domain) {
            self.names.entry(ancestor.to_owned()).or_default().count += 1;
        }
        self.names.entry(name.clone()).or_default().data.push(data.clone());
    }

    fn remove(&mut self, (name, data): &Entry, domain: &str) {
        if let Some(entries) = self.names.get_mut(name)
            && let Some(position) = entries.data.iter().position(|there| there == data)
        {
            entries.data.swap_remove(position);
        }
        for ancestor in with_ancestors(name, domain) {
            if let Some(entries) = self.names.get_mut(ancestor) {
                entries.count -= 1;
                if entries.count == 0 {
                    self.names.remove(ancestor);
                }
            }
        }
    }
}

/// A name and those above it, up to the domain. Reverse names stand alone: what is above them belongs to others.
fn with_ancestors<'a>(name: &'a str, domain: &'a str) -> impl Iterator<Item = &'a str> {
    let under_domain = name.ends_with(domain);
    std::iter::successors(Some(name), move |name| {
        let above = name.split_once('.')?.1;
        (under_domain && above.len() > domain.len()).then_some(above)
    })
}

#[cfg(test)]
mod tests;
