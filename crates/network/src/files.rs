//! The texts of a pod's `/etc/hosts` and `/etc/resolv.conf`, as functions of what goes into them.

use std::fmt::Write;
use std::fs;
use std::net::IpAddr;

/// What goes into a pod's `/etc/hosts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    /// The first line, as a comment.
    pub heading: String,
    /// The pod's own addresses.
    pub addresses: Vec<IpAddr>,
    /// The pod's own names, the full one first.
    pub names: Vec<String>,
    /// Names that the user adds.
    pub aliases: Vec<HostAlias>,
}

/// Names for an address that a user adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAlias {
    /// The address.
    pub address: IpAddr,
    /// Its names.
    pub names: Vec<String>,
}

impl Hosts {
    /// The text of the file.
    pub fn render(&self) -> String {
        let mut text = String::new();
        line(&mut text, format_args!("# {}", self.heading));
        text.push_str(
            "127.0.0.1\tlocalhost\n\
             ::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\n\
             fe00::0\tip6-mcastprefix\n\
             fe00::1\tip6-allnodes\n\
             fe00::2\tip6-allrouters\n",
        );
        for address in self.addresses.iter().filter(|_| !self.names.is_empty()) {
            line(&mut text, format_args!("{address}\t{}", self.names.join("\t")));
        }
        text + &self.alias_text()
    }

    /// The machine's own file with the user's names added, for a pod in the machine's network.
    pub fn render_over(&self, machine: &str) -> String {
        let mut text = String::new();
        line(&mut text, format_args!("# {}", self.heading));
        text.push_str(machine);
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text + &self.alias_text()
    }

    fn alias_text(&self) -> String {
        let mut text = String::new();
        if !self.aliases.is_empty() {
            text.push_str("\n# Entries added by HostAliases.\n");
        }
        for alias in &self.aliases {
            line(&mut text, format_args!("{}\t{}", alias.address, alias.names.join("\t")));
        }
        text
    }
}

/// What goes into a `resolv.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolvers {
    /// Who is asked, in order.
    pub nameservers: Vec<IpAddr>,
    /// What is put behind a name that has few dots.
    pub searches: Vec<String>,
    /// Options, as `name` or `name:value`.
    pub options: Vec<String>,
}

/// Where a pod's names come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsPolicy {
    /// The instance's name server, which asks the machine's for what it does not know.
    ClusterFirst,
    /// The machine's name servers.
    Machine,
    /// Only what the user adds.
    None,
}

/// The names of the instance, as a pod's resolver needs them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNames {
    /// The instance's name server.
    pub nameserver: IpAddr,
    /// The domain of the instance, such as `cluster.local`.
    pub domain: String,
    /// The namespace of the pod.
    pub namespace: String,
}

/// The most name servers that the C library asks.
const MOST_NAMESERVERS: usize = 3;
/// The most search domains that are kept, and the most characters they have together with the spaces between.
const MOST_SEARCHES: usize = 32;
const LONGEST_SEARCHES: usize = 2048;

impl Resolvers {
    /// What a pod gets by its policy, with what the user adds.
    pub fn for_pod(policy: DnsPolicy, cluster: &ClusterNames, machine: &Self, added: &Self) -> Self {
        let base = match policy {
            DnsPolicy::None => Self::default(),
            DnsPolicy::Machine => machine.clone(),
            DnsPolicy::ClusterFirst => {
                let ClusterNames {
                    nameserver,
                    domain,
                    namespace,
                } = cluster;
                let mut searches = vec![
                    format!("{namespace}.svc.{domain}"),
                    format!("svc.{domain}"),
                    domain.clone(),
                ];
                searches.extend(machine.searches.iter().cloned());
                Self {
                    nameservers: vec![*nameserver],
                    searches,
                    options: vec!["ndots:5".into()],
                }
            }
        };
        base.with(added)
    }

    /// These and `added`: servers and searches are appended once each, options replace those of the same name.
    fn with(mut self, added: &Self) -> Self {
        self.nameservers.extend(&added.nameservers);
        self.searches.extend(added.searches.iter().cloned());
        keep_first(&mut self.nameservers);
        keep_first(&mut self.searches);
        for option in &added.options {
            self.options.retain(|there| option_name(there) != option_name(option));
            self.options.push(option.clone());
        }
        self.nameservers.truncate(MOST_NAMESERVERS);
        self.searches.truncate(MOST_SEARCHES);
        while self.searches.iter().map(|search| search.len() + 1).sum::<usize>() > LONGEST_SEARCHES + 1 {
            self.searches.pop();
        }
        self
    }

    /// The text of the file.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for nameserver in &self.nameservers {
            line(&mut text, format_args!("nameserver {nameserver}"));
        }
        if !self.searches.is_empty() {
            line(&mut text, format_args!("search {}", self.searches.join(" ")));
        }
        if !self.options.is_empty() {
            line(&mut text, format_args!("options {}", self.options.join(" ")));
        }
        text
    }

    /// Reads a file as the C library does: the last `search` or `domain` counts, unknown lines are passed over.
    pub fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match words.next() {
                // The scope of a link-local server means nothing elsewhere.
                Some("nameserver") => found
                    .nameservers
                    .extend(words.next().and_then(|word| word.parse::<IpAddr>().ok())),
                Some("search" | "domain") => found.searches = words.map(ToOwned::to_owned).collect(),
                Some("options") => found.options.extend(words.map(ToOwned::to_owned)),
                _ => {}
            }
        }
        found
    }

    /// The machine's resolvers, as something else than the machine can use them: where the machine asks a stub on its own
    /// loopback, those that the stub asks.
    pub fn of_machine() -> Self {
        let read = |path| {
            fs::read_to_string(path)
                .map(|text| Self::parse(&text))
                .unwrap_or_default()
        };
        let own = read("/etc/resolv.conf");
        if !own.nameservers.is_empty() && own.nameservers.iter().all(IpAddr::is_loopback) {
            let behind = read("/run/systemd/resolve/resolv.conf");
            if !behind.nameservers.is_empty() {
                return behind;
            }
        }
        own
    }
}

fn option_name(option: &str) -> &str {
    option.split(':').next().unwrap_or(option)
}

fn keep_first<T: PartialEq>(list: &mut Vec<T>) {
    let mut kept = Vec::with_capacity(list.len());
    for item in list.drain(..) {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    *list = kept;
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a string does not fail");
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> ClusterNames {
        ClusterNames {
            nameserver: "10.65.0.10".parse().unwrap(),
            domain: "cluster.local".into(),
            namespace: "shop".into(),
        }
    }

    #[test]
    fn a_pod_finds_itself_and_what_its_user_added() {
        let hosts = Hosts {
            heading: "Managed".into(),
            addresses: vec!["10.64.1.2".parse().unwrap()],
            names: vec!["db-0.db.shop.svc.cluster.local".into(), "db-0".into()],
            aliases: vec![HostAlias {
                address: "192.0.2.7".parse().unwrap(),
                names: vec!["a.example".into(), "b.example".into()],
            }],
        };
        let text = hosts.render();
        assert!(text.starts_with("# Managed\n127.0.0.1\tlocalhost\n"), "{text}");
        assert!(
            text.contains("\n10.64.1.2\tdb-0.db.shop.svc.cluster.local\tdb-0\n"),
            "{text}"
        );
        assert!(
            text.ends_with("\n\n# Entries added by HostAliases.\n192.0.2.7\ta.example\tb.example\n"),
            "{text}"
        );
        let over = hosts.render_over("192.0.2.1 machine");
        assert!(over.starts_with("# Managed\n192.0.2.1 machine\n\n# Entries"), "{over}");
    }

    #[test]
    fn cluster_first_searches_the_pods_namespace_and_then_the_machines_domains() {
        let machine = Resolvers::parse("search office.example\nnameserver 192.0.2.53\noptions edns0\n");
        let pod = Resolvers::for_pod(DnsPolicy::ClusterFirst, &cluster(), &machine, &Resolvers::default());
        assert_eq!(
            pod.render(),
            "nameserver 10.65.0.10\n\
             search shop.svc.cluster.local svc.cluster.local cluster.local office.example\n\
             options ndots:5\n"
        );
        let machines = Resolvers::for_pod(DnsPolicy::Machine, &cluster(), &machine, &Resolvers::default());
        assert_eq!(machines, machine);
    }

    #[test]
    fn what_the_user_adds_comes_after_and_replaces_options_of_the_same_name() {
        let added = Resolvers {
            nameservers: vec!["10.65.0.10".parse().unwrap(), "1.1.1.1".parse().unwrap()],
            searches: vec!["svc.cluster.local".into(), "resolv.example".into()],
            options: vec!["ndots:2".into(), "edns0".into()],
        };
        let pod = Resolvers::for_pod(DnsPolicy::ClusterFirst, &cluster(), &Resolvers::default(), &added);
        assert_eq!(
            pod.render(),
            "nameserver 10.65.0.10\nnameserver 1.1.1.1\n\
             search shop.svc.cluster.local svc.cluster.local cluster.local resolv.example\n\
             options ndots:2 edns0\n"
        );
        let alone = Resolvers::for_pod(DnsPolicy::None, &cluster(), &Resolvers::default(), &added);
        assert_eq!(alone, added);
    }

    #[test]
    fn more_than_the_c_library_takes_is_left_out() {
        let added = Resolvers {
            nameservers: (1..9).map(|number| IpAddr::from([192, 0, 2, number])).collect(),
            searches: (0..40)
                .map(|number| format!("{}{number}.example", "x".repeat(100)))
                .collect(),
            options: vec![],
        };
        let pod = Resolvers::for_pod(DnsPolicy::None, &cluster(), &Resolvers::default(), &added);
        assert_eq!(pod.nameservers.len(), 3);
        assert!(pod.searches.join(" ").len() <= LONGEST_SEARCHES && pod.searches.len() > 15);
    }

    #[test]
    fn a_resolv_conf_is_read_as_the_c_library_reads_it() {
        let text = "# comment\ndomain a.example\nsearch b.example c.example ; end\nnameserver fe80::1%eth0\n\
                    nameserver 192.0.2.1 # first\nsortlist 10.0.0.0\noptions ndots:1 rotate\n";
        let found = Resolvers::parse(text);
        assert_eq!(found.searches, ["b.example", "c.example"]);
        assert_eq!(found.nameservers, [IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(found.options, ["ndots:1", "rotate"]);
    }
}
