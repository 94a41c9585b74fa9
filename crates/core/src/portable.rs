//! What of a spec may come from elsewhere (C-05). A snapshot's manifest, or a message of another host,
//! says what a sandbox was; it never says what of this host a guest sees, what it may reach, or which
//! wall may be left out. Only the caller says that.

use crate::{Image, Network, SandboxSpec, Workspace};

impl SandboxSpec {
    /// The fields by which this spec names things of a host, gives up a feature or opens the network.
    /// Empty: it may come from anywhere.
    pub fn caller_only(&self) -> Vec<&'static str> {
        // Taken apart field by field, so that a new field has to be thought about.
        let Self {
            backend: _,
            host,
            boundaries: _,
            image,
            root: _,
            workspace,
            workspace_at,
            read_only: _,
            mounts,
            trees,
            env: _,
            user: _,
            workdir: _,
            network,
            secrets,
            deterministic: _,
            limits: _,
            strict: _,
            tenant: _,
            labels: _,
            without,
        } = self;
        let named = [
            ("host", host.is_some()),
            ("image", image.is_on_the_host()),
            ("workspace", *workspace != Workspace::Ephemeral),
            ("workspaceAt", workspace_at.is_some()),
            ("mounts", !mounts.is_empty()),
            ("trees", !trees.is_empty()),
            ("network", matches!(network, Network::Egress(_))),
            ("secrets", !secrets.is_empty()),
            ("without", !without.is_empty()),
        ];
        named.into_iter().filter(|(_, found)| *found).map(|(field, _)| field).collect()
    }

    /// The same spec without what only a caller may say.
    #[must_use]
    pub fn portable(&self) -> Self {
        let mut spec = self.clone();
        if spec.image.is_on_the_host() {
            spec.image = Image::Host;
        }
        if matches!(spec.network, Network::Egress(_)) {
            spec.network = Network::default();
        }
        spec.host = None;
        spec.workspace = Workspace::Ephemeral;
        spec.workspace_at = None;
        spec.mounts.clear();
        spec.trees.clear();
        spec.secrets.clear();
        spec.without.clear();
        spec
    }
}

impl Image {
    /// Whether it is named by a path of the host.
    pub const fn is_on_the_host(&self) -> bool {
        match self {
            Self::Directory(_) | Self::Oci(_) | Self::Wasm(_) => true,
            Self::Host | Self::Named(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_the_host_is_found_and_left_out_field_by_field() {
        for (json, field) in [
            (r#"{"host": "alpha"}"#, "host"),
            (r#"{"image": {"directory": "/"}}"#, "image"),
            (r#"{"image": {"oci": "/a"}}"#, "image"),
            (r#"{"image": {"wasm": "/a"}}"#, "image"),
            (r#"{"workspace": {"local": "/root"}}"#, "workspace"),
            (
                r#"{"workspace": {"overlay": {"lower": "/", "upper": "/u", "work": "/w"}}}"#,
                "workspace",
            ),
            (r#"{"workspaceAt": {"path": "/home/me/x"}}"#, "workspaceAt"),
            (r#"{"mounts": [{"source": "/", "target": "/x", "readOnly": false}]}"#, "mounts"),
            (
                r#"{"trees": [{"partOf": "git", "mount": {"source": "/", "target": "/x"}}]}"#,
                "trees",
            ),
            (r#"{"network": {"egress": ["example.org"]}}"#, "network"),
            (r#"{"secrets": ["KEY=a.org"]}"#, "secrets"),
            (r#"{"without": ["memory-limit"]}"#, "without"),
        ] {
            let spec: SandboxSpec = serde_json::from_str(json).unwrap();
            assert_eq!(spec.caller_only(), [field], "{json}");
            assert_eq!(spec.portable(), SandboxSpec::default(), "{json}");
        }
        let plain: SandboxSpec =
            serde_json::from_str(r#"{"image": {"named": "debian"}, "readOnly": true}"#).unwrap();
        assert_eq!(plain.caller_only(), Vec::<&str>::new());
        assert_eq!(plain.portable(), plain);
    }
}
