//! The directories a copy-on-write workspace is made of. What lies in them is for others to say.

use serde::{Deserialize, Serialize};

use crate::HostPath;

/// A copy-on-write view of a host directory. Changes go to `upper`; `lower` is never written.
///
/// `upper` and `work` lie beside each other in one directory, which has no other use. One sandbox at a time
/// may write to them; the next one finds what the one before has left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OverlayDirs {
    /// The directory that is shown. It must not change while a sandbox looks at it.
    pub lower: HostPath,
    /// What differs from it: an empty directory at first.
    pub upper: HostPath,
    /// A directory for the mechanism's own use, empty at first.
    pub work: HostPath,
}

impl OverlayDirs {
    /// Why these layers are unusable regardless of their contents: the field and the reason.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        let (lower, upper, work) =
            (self.lower.as_path(), self.upper.as_path(), self.work.as_path());
        if upper == work || upper.parent() != work.parent() {
            return Some(("workspace.overlay.work", "does not lie beside the upper layer"));
        }
        let inside = lower.starts_with(upper) || lower.starts_with(work);
        inside.then_some(("workspace.overlay.lower", "lies inside a layer of its own view"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_layer_problem(lower: &str, upper: &str, work: &str) -> Option<&'static str> {
        let path = |text: &str| text.parse().unwrap();
        let layers = OverlayDirs { lower: path(lower), upper: path(upper), work: path(work) };
        layers.problem().map(|(field, _)| field)
    }

    #[test]
    fn the_work_directory_lies_beside_the_upper_layer() {
        assert_eq!(find_layer_problem("/a", "/s/upper", "/s/work"), None);
        for work in ["/s/upper", "/s/upper/work", "/t/work", "/"] {
            assert_eq!(
                find_layer_problem("/a", "/s/upper", work),
                Some("workspace.overlay.work"),
                "{work}"
            );
        }
    }

    #[test]
    fn nothing_is_shown_that_lies_in_a_layer_of_its_own() {
        for lower in ["/s/upper", "/s/upper/a", "/s/work"] {
            let named = find_layer_problem(lower, "/s/upper", "/s/work");
            assert_eq!(named, Some("workspace.overlay.lower"), "{lower}");
        }
        assert_eq!(find_layer_problem("/s", "/s/upper", "/s/work"), None);
    }
}
