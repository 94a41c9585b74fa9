//! Properties of admission and of the JSON forms, over generated specs and capabilities.

#![allow(clippy::unwrap_used, reason = "generators make values that always parse")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use stockade_core::*;

fn feature() -> impl Strategy<Value = Feature> {
    select(Feature::ALL)
}

fn limits() -> impl Strategy<Value = Limits> {
    let span = || option::of(any::<u32>().prop_map(|ms| Span::millis(ms.into())));
    let bytes = || option::of(any::<u64>().prop_map(Bytes));
    let count = || option::of(any::<u32>());
    let cpu = option::of(any::<u32>().prop_map(Millicores));
    let fuel = option::of(any::<u64>());
    (cpu, span(), span(), bytes(), bytes(), count(), count(), bytes(), fuel).prop_map(
        |(cpu_rate, cpu_time, wall_time, memory, disk, processes, open_files, output, fuel)| {
            Limits {
                cpu_rate,
                cpu_time,
                wall_time,
                memory,
                disk,
                processes,
                open_files,
                output,
                fuel,
            }
        },
    )
}

fn host_path() -> impl Strategy<Value = HostPath> {
    "/[a-z]{1,8}(/[a-zé ]{1,8}){0,2}".prop_map(|text| text.parse().unwrap())
}

fn network() -> impl Strategy<Value = Network> {
    let rule = "(GET@)?(\\*\\.)?[a-z]{1,8}\\.[a-z]{2,4}(:[1-9][0-9]{0,3})?(/[a-z]{1,4}){0,2}";
    prop_oneof![
        Just(Network::Auto),
        Just(Network::None),
        Just(Network::Loopback),
        vec(rule.prop_map(|text| text.parse().unwrap()), 0..3).prop_map(Network::Egress),
    ]
}

/// Names as a guest would write them: what is read in several ways is among them more often than by chance.
fn host_name() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[a-zA-Z0-9-]{0,5}",
        select(vec![
            ".", ".", "..", "0x7f", "0177", "127", "\0", "%00", "xn--", "@", "\u{3002}", "\u{ad}"
        ])
        .prop_map(str::to_owned),
        any::<char>().prop_map(String::from),
    ];
    vec(part, 0..8).prop_map(|parts| parts.concat())
}

/// Paths as a guest would write them: what is read in several ways is among them more often than by chance.
fn request_path() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[a-zA-Z0-9._~-]{0,4}",
        select(vec![
            "/", "/", "//", "..", ".", "%2e", "%2F", "%5c", "%00", "%25", "%7e", "%C3%A9", ";"
        ])
        .prop_map(str::to_owned),
        "[ -~]{0,2}",
        any::<char>().prop_map(String::from),
    ];
    vec(part, 0..8).prop_map(|parts| format!("/{}", parts.concat()))
}

/// Paths that have a form.
fn plain_path() -> impl Strategy<Value = String> {
    "(/[a-zA-Z0-9_~+%-]{1,4}){1,3}/?".prop_map(|path| path.replace('%', "%41"))
}

/// Rules with methods and paths, and texts that nearly are.
fn request_rule() -> impl Strategy<Value = String> {
    let methods = select(vec!["", "GET@", "POST+GET@", "!", "!PUT@", "get@", "GET+@"]);
    let host = select(vec!["a.org", "*.a.org", "10.0.0.0/8", "[::1]:80", "A.org:8443", "ask", ""]);
    let path = prop_oneof![Just(String::new()), plain_path(), request_path(), Just("/v1/*".into())];
    (methods, host, path).prop_map(|(methods, host, path)| format!("{methods}{host}{path}"))
}

fn image() -> impl Strategy<Value = Image> {
    prop_oneof![
        Just(Image::Host),
        host_path().prop_map(Image::Directory),
        host_path().prop_map(Image::Oci),
        host_path().prop_map(Image::Wasm),
    ]
}

fn workspace() -> impl Strategy<Value = Workspace> {
    let layers = (host_path(), host_path(), host_path())
        .prop_map(|(lower, upper, work)| Workspace::Overlay(OverlayDirs { lower, upper, work }));
    prop_oneof![Just(Workspace::Ephemeral), host_path().prop_map(Workspace::Local), layers]
}

fn mount() -> impl Strategy<Value = Mount> {
    (host_path(), "/?[a-z]{1,4}", any::<bool>()).prop_map(|(source, target, read_only)| Mount {
        source,
        target: target.parse().unwrap(),
        read_only,
    })
}

fn tree() -> impl Strategy<Value = HostTree> {
    (mount(), any::<bool>()).prop_map(|(mount, required)| HostTree {
        part_of: "test".into(),
        mount,
        required,
    })
}

fn spec() -> impl Strategy<Value = SandboxSpec> {
    let place = (
        image(),
        workspace(),
        any::<bool>(),
        vec(mount(), 0..3),
        select(vec![RootMode::ReadOnly, RootMode::CopyOnWrite]),
        subsequence(Boundary::ALL.to_vec(), 0..3),
        any::<bool>(),
        vec(tree(), 0..2),
    );
    let people = (
        btree_map("[A-Z_]{1,6}".prop_map(|name| name.parse().unwrap()), ".{0,8}", 0..3),
        option::of((0..u32::MAX, 0..u32::MAX).prop_map(|(uid, gid)| User { uid, gid })),
        option::of("[a-z]{1,8}".prop_map(|text| text.parse().unwrap())),
        btree_map(".{0,8}", ".{0,8}", 0..3),
        btree_set(feature(), 0..6),
        any::<bool>(),
    );
    (place, people, network(), limits()).prop_map(|(place, people, network, limits)| SandboxSpec {
        backend: BackendChoice::Auto,
        host: None,
        boundaries: place.5.into_iter().collect(),
        image: place.0,
        root: place.4,
        workspace: place.1,
        workspace_at: None,
        read_only: place.2,
        mounts: place.3,
        trees: place.7,
        env: people.0,
        user: people.1,
        workdir: people.2,
        network,
        secrets: Vec::new(),
        deterministic: people.5,
        limits,
        strict: place.6,
        tenant: TenantName::default(),
        labels: people.3,
        without: people.4,
    })
}

fn support() -> impl Strategy<Value = Support> {
    prop_oneof![
        4 => Just(Support::full("a mechanism")),
        1 => Just(Support::partial("a mechanism", "a gap", "a remedy")),
        1 => Just(Support::missing("a reason", "a remedy")),
    ]
}

fn capabilities() -> impl Strategy<Value = Capabilities> {
    (btree_map(feature(), support(), 0..40), select(Boundary::ALL.to_vec())).prop_map(
        |(features, boundary)| {
            let none = Capabilities::none(BackendName::literal("some"), boundary);
            features.into_iter().fold(none, |all, (feature, support)| all.with(feature, support))
        },
    )
}

/// Whether the backend is taken at all; if not, its features do not matter.
fn accepted(spec: &SandboxSpec, capabilities: &Capabilities) -> bool {
    spec.boundaries.is_empty() || spec.boundaries.contains(&capabilities.boundary)
}

/// Whether a feature that is asked for has to be refused. A limit that is watched does, unless `strict`.
fn is_lacking(spec: &SandboxSpec, capabilities: &Capabilities, feature: Feature) -> bool {
    let is_limit = LimitKind::ALL.iter().any(|kind| kind.feature() == feature);
    let watched = is_limit && matches!(capabilities.support(feature), Support::Partial { .. });
    let held = capabilities.has(feature) || (watched && !spec.strict);
    !held && !spec.without.contains(&feature)
}

fn refusals(spec: &SandboxSpec, capabilities: &Capabilities) -> Vec<Refusal> {
    admit(spec, capabilities).err().map(|refusals| refusals.0).unwrap_or_default()
}

/// The features a spec asks for outright: those of its fields and those of its named limits.
fn asked(spec: &SandboxSpec) -> BTreeSet<Feature> {
    let limits = LimitKind::ALL.into_iter().filter(|kind| spec.limits.asks_for(*kind));
    let fields = spec.needs().into_iter().map(|(feature, _)| feature);
    fields.chain(limits.map(LimitKind::feature)).collect()
}

fn ending() -> impl Strategy<Value = Ending> {
    let failure = (0..5u8, ".{0,8}").prop_map(|(kind, detail)| match kind {
        0 => StartFailure::NotFound(detail),
        1 => StartFailure::NotExecutable(detail),
        2 => StartFailure::BadDirectory(detail),
        3 => StartFailure::NoResources(detail),
        _ => StartFailure::NoSandbox(detail),
    });
    prop_oneof![
        any::<i32>().prop_map(Ending::Exited),
        (1..=64i32).prop_map(|number| Ending::Signalled(Signal(number))),
        failure.prop_map(Ending::StartFailed),
        select(LimitKind::ALL.to_vec()).prop_map(Ending::LimitExceeded),
        Just(Ending::TimedOut),
        Just(Ending::Cancelled),
        Just(Ending::Killed),
        ".{0,8}".prop_map(Ending::Refused),
        ".{0,8}".prop_map(Ending::Lost),
    ]
}

fn enforcement() -> impl Strategy<Value = Enforcement> {
    let limit = || select(LimitKind::ALL.to_vec());
    let text = || ".{0,8}";
    prop_oneof![
        (limit(), text(), text()).prop_map(|(limit, value, by)| Enforcement::Fully {
            limit,
            value,
            by
        }),
        (limit(), text(), text(), text()).prop_map(|(limit, value, by, gap)| Enforcement::Partly {
            limit,
            value,
            by,
            gap
        }),
        (limit(), text()).prop_map(|(limit, reason)| Enforcement::NotAtAll { limit, reason }),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let stream = || {
        (any::<u64>(), any::<u64>()).prop_map(|(bytes, dropped)| StreamReport { bytes, dropped })
    };
    let number = || option::of(any::<u64>());
    let usage = (any::<u64>(), number(), number(), number()).prop_map(
        |(wall_ms, cpu_ms, peak_memory_bytes, fuel)| Usage {
            wall_ms,
            cpu_ms,
            peak_memory_bytes,
            fuel,
        },
    );
    let text = || "[a-z0-9.:-]{1,12}";
    let denied = (text(), option::of(any::<u16>()), option::of(text()), option::of(text()), text())
        .prop_map(|(host, port, request, allow_with, reason)| DeniedHost {
            host,
            port,
            request,
            allow_with,
            reason,
        });
    let limits = vec(enforcement(), 0..4);
    let network = (vec(denied, 0..3), any::<bool>());
    (ending(), stream(), stream(), usage, limits, network).prop_map(
        |(ending, stdout, stderr, usage, limits, (network_denied, network_unreachable))| {
            let limits_reached = limits.iter().map(Enforcement::limit).collect();
            let network_observed = None;
            Outcome {
                ending,
                stdout,
                stderr,
                usage,
                limits,
                limits_reached,
                network_denied,
                network_unreachable,
                network_observed,
            }
        },
    )
}

proptest! {
    #[test]
    fn admission_never_admits_a_missing_feature(spec in spec(), capabilities in capabilities()) {
        let lacking = asked(&spec)
            .into_iter()
            .find(|feature| is_lacking(&spec, &capabilities, *feature));
        if let Some(feature) = lacking && accepted(&spec, &capabilities) {
            let named = refusals(&spec, &capabilities).iter().any(|r| r.feature == Some(feature));
            prop_assert!(named, "{feature} is missing and was not refused");
        }
    }

    #[test]
    fn a_boundary_that_is_not_accepted_is_never_admitted(spec in spec(), capabilities in capabilities()) {
        prop_assert!(accepted(&spec, &capabilities) || admit(&spec, &capabilities).is_err());
    }

    #[test]
    fn every_missing_feature_is_named_in_one_answer(spec in spec(), capabilities in capabilities()) {
        prop_assume!(accepted(&spec, &capabilities));
        let named: BTreeSet<_> =
            refusals(&spec, &capabilities).iter().filter_map(|refusal| refusal.feature).collect();
        let lacking: BTreeSet<_> = asked(&spec)
            .into_iter()
            .filter(|feature| is_lacking(&spec, &capabilities, *feature))
            .collect();
        prop_assert_eq!(named, lacking);
    }

    #[test]
    fn adding_a_feature_never_adds_a_refusal(
        spec in spec(), capabilities in capabilities(), feature in feature()
    ) {
        let before = refusals(&spec, &capabilities);
        let after = refusals(&spec, &capabilities.with(feature, Support::full("more")));
        prop_assert!(after.iter().all(|refusal| before.contains(refusal)));
    }

    #[test]
    fn giving_a_feature_up_never_adds_a_refusal(
        spec in spec(), capabilities in capabilities(), feature in feature()
    ) {
        let before = refusals(&spec, &capabilities);
        let mut without = spec;
        without.without.insert(feature);
        let after = refusals(&without, &capabilities);
        prop_assert!(after.iter().all(|refusal| before.contains(refusal)));
    }

    #[test]
    fn what_is_admitted_reports_every_limit_it_sets(spec in spec(), capabilities in capabilities()) {
        if let Ok(admitted) = admit(&spec, &capabilities) {
            let reported: BTreeMap<_, _> =
                admitted.enforcement().iter().map(|entry| (entry.limit(), entry)).collect();
            for kind in LimitKind::ALL {
                let set = admitted.limits().asks_for(kind);
                let full = matches!(reported.get(&kind), Some(Enforcement::Fully { .. }));
                prop_assert!(!set || reported.contains_key(&kind));
                prop_assert_eq!(full, set && capabilities.has(kind.feature()));
            }
        }
    }

    #[test]
    fn specs_survive_json(spec in spec()) {
        let json = serde_json::to_string(&spec).unwrap();
        prop_assert_eq!(serde_json::from_str::<SandboxSpec>(&json).unwrap(), spec);
    }

    #[test]
    fn outcomes_survive_json(outcome in outcome()) {
        let json = serde_json::to_string(&outcome).unwrap();
        prop_assert_eq!(serde_json::from_str::<Outcome>(&json).unwrap(), outcome);
    }

    #[test]
    fn capabilities_survive_json(capabilities in capabilities()) {
        let json = serde_json::to_string(&capabilities).unwrap();
        prop_assert_eq!(serde_json::from_str::<Capabilities>(&json).unwrap(), capabilities);
    }

    #[test]
    fn a_name_of_a_host_has_one_form_or_none(given in host_name()) {
        if let Some(name) = canonical_host(&given) {
            let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            prop_assert!(name.bytes().all(|byte| is_plain(byte) || matches!(byte, b'-' | b'.')));
            prop_assert!(name.split('.').all(|label| !label.is_empty()), "{name}");
            prop_assert!(name.parse::<std::net::IpAddr>().is_err(), "{name}");
            // Every spelling of a form has the same one.
            prop_assert_eq!(canonical_host(&name), Some(name.clone()));
            let other = format!("{}.", name.to_ascii_uppercase());
            prop_assert_eq!(canonical_host(&other), Some(name));
        }
    }

    #[test]
    fn a_request_path_with_a_form_is_read_in_one_way(given in request_path()) {
        if let Ok(path) = RequestPath::parse(&given) {
            let shown = path.as_str();
            prop_assert!(shown.starts_with('/') && !shown.contains("//"));
            prop_assert!(shown.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert!(!shown.contains(['\\', ';', '?', '#']));
            prop_assert!(shown.split('/').all(|segment| segment != "." && segment != ".."));
            for hidden in ["%2F", "%5C", "%3B", "%25", "%2E", "%0"] {
                prop_assert!(!shown.contains(hidden), "{shown}");
            }
            // The form of a form is itself.
            prop_assert_eq!(RequestPath::parse(shown).unwrap(), path);
        }
    }

    #[test]
    fn a_rule_prints_in_a_form_that_parses_back(given in request_rule()) {
        if let Ok(rule) = given.parse::<EgressRule>() {
            let shown = rule.to_string();
            prop_assert_eq!(&shown.parse::<EgressRule>().unwrap(), &rule);
            prop_assert_eq!(shown.parse::<EgressRule>().unwrap().to_string(), shown.clone());
            // A list of rules is cut at commas.
            prop_assert_eq!(parse_egress_list(&shown).unwrap(), vec![rule]);
        }
    }

    #[test]
    fn what_is_below_a_path_is_decided_like_it(
        prefix in plain_path(), given in plain_path(), more in plain_path()
    ) {
        let rule = |text: String| text.parse::<EgressRule>().unwrap();
        let decide = |rules: &[EgressRule], path: &str| {
            let path = RequestPath::parse(path).unwrap();
            decide_request(rules, ("a.org", 443), "GET", &path).is_allowed()
        };
        let below = format!("{}{more}", given.trim_end_matches('/'));
        let allowing = [rule(format!("a.org{prefix}"))];
        let denying = [rule("a.org".into()), rule(format!("!a.org{prefix}"))];
        prop_assert!(!decide(&allowing, &given) || decide(&allowing, &below));
        prop_assert!(decide(&denying, &given) || !decide(&denying, &below));
        // What a rule would allow, the same rule with `!` denies.
        prop_assert!(!decide(&allowing, &given) || !decide(&denying, &given));
        // Another rule that allows never takes anything away.
        let more_allowed = [allowing[0].clone(), rule(format!("GET@a.org{more}"))];
        prop_assert!(!decide(&allowing, &given) || decide(&more_allowed, &given));
    }

    #[test]
    fn parsing_a_path_never_lets_one_escape(given in "[./a]{1,12}") {
        if let Ok(path) = given.parse::<SandboxPath>() {
            let mut depth = 0i32;
            for part in path.as_str().split('/') {
                depth += match part { "" | "." => 0, ".." => -1, _ => 1 };
                prop_assert!(depth >= 0, "{given}");
            }
        }
    }
}
