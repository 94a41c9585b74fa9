//! Which of many refusals a person is shown: those of the backend that would be taken if it could do what
//! is asked. The same cause in the words of every other backend hides it.

use stockade_backends::native;
use stockade_core::{BackendName, Refusal, Refusals};

/// What a refusal says whose field is wrong for every backend, or about a backend as a whole.
const WHOLE_BACKEND: [&str; 2] = ["backend", BOUNDARIES_FIELD];
const BOUNDARIES_FIELD: &str = "boundaries";

/// The refusals that matter, in their order.
pub fn select_decisive(refusals: &Refusals) -> Vec<&Refusal> {
    let all = || refusals.0.iter();
    let wrong_fields: Vec<_> = all().filter(|refusal| is_wrong_field(refusal)).collect();
    if !wrong_fields.is_empty() {
        return wrong_fields;
    }
    let passed_over: Vec<_> = all().filter(|refusal| is_passed_over(refusal)).collect();
    if !passed_over.is_empty() && all().all(|refusal| refusal.feature.is_none()) {
        return passed_over;
    }
    match find_closest_backend(refusals) {
        Some(backend) => {
            all().filter(|refusal| refusal.backend.as_ref() == Some(backend)).collect()
        }
        None if all().all(|refusal| refusal.feature.is_none()) => select_default_refusals(refusals),
        // One backend was named, and everything is its own.
        None => all().collect(),
    }
}

fn is_wrong_field(refusal: &Refusal) -> bool {
    refusal.feature.is_none()
        && refusal.backend.is_none()
        && !WHOLE_BACKEND.contains(&refusal.field.as_str())
}

/// Whether it is about a backend that may have the boundary asked for, and only has to be named. None of them is
/// closer than another.
fn is_passed_over(refusal: &Refusal) -> bool {
    refusal.field == BOUNDARIES_FIELD && refusal.backend.is_some()
}

/// The backend that lacks least; of several the one that selection would come to first.
fn find_closest_backend(refusals: &Refusals) -> Option<&BackendName> {
    let lacking = |backend: &BackendName| {
        refusals.0.iter().filter(|refusal| refusal.backend.as_ref() == Some(backend)).count()
    };
    refusals.0.iter().filter_map(|refusal| refusal.backend.as_ref()).min_by_key(|it| lacking(it))
}

/// Where none can be had: why not the one that needs nothing installed.
fn select_default_refusals(refusals: &Refusals) -> Vec<&Refusal> {
    let of_native = |refusal: &&Refusal| refusal.reason.starts_with(native::NAME.as_str());
    let usual = refusals.0.iter().find(of_native).or_else(|| refusals.0.first());
    usual.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_core::Feature;

    fn of(backend: Option<&'static str>, field: &str, feature: Option<Feature>) -> Refusal {
        Refusal {
            field: field.into(),
            feature,
            reason: format!("{} cannot", backend.unwrap_or("native")),
            remedy: "so".into(),
            backend: backend.map(BackendName::literal),
        }
    }

    fn shown(refusals: Vec<Refusal>) -> Vec<Option<String>> {
        let refusals = Refusals(refusals);
        let backends = select_decisive(&refusals).into_iter();
        backends.map(|refusal| refusal.backend.as_ref().map(ToString::to_string)).collect()
    }

    #[test]
    fn the_backend_that_lacks_least_is_told_of_alone() {
        let egress = Some(Feature::EgressAllowlist);
        let refusals = vec![
            of(None, "backend", None),
            of(Some("one"), "network", egress),
            of(Some("one"), "image", Some(Feature::HostImage)),
            of(Some("two"), "network", egress),
            of(Some("three"), "network", egress),
        ];
        assert_eq!(shown(refusals), [Some("two".to_owned())]);
    }

    #[test]
    fn who_asks_for_a_boundary_is_told_of_every_backend_to_name_for_it() {
        let refusals = vec![
            of(None, "boundaries", None),
            of(None, "backend", None),
            of(Some("far"), "boundaries", None),
            of(Some("machines"), "boundaries", None),
        ];
        assert_eq!(shown(refusals), [Some("far".to_owned()), Some("machines".to_owned())]);
    }

    #[test]
    fn a_wrong_field_is_told_of_before_any_backend() {
        let refusals = vec![
            of(Some("one"), "network", Some(Feature::EgressAllowlist)),
            of(None, "labels", None),
        ];
        assert_eq!(shown(refusals), [None]);
    }

    #[test]
    fn everything_that_a_named_backend_lacks_is_told() {
        let refusals = vec![
            of(None, "network", Some(Feature::EgressAllowlist)),
            of(None, "image", Some(Feature::OciImage)),
        ];
        assert_eq!(shown(refusals).len(), 2);
    }

    #[test]
    fn where_none_can_be_had_it_is_told_why_not_native() {
        let mut docker = of(None, "backend", None);
        docker.reason = "docker is not available".into();
        let refusals = Refusals(vec![docker, of(None, "backend", None)]);
        let shown: Vec<_> =
            select_decisive(&refusals).iter().map(|it| it.reason.as_str()).collect();
        assert_eq!(shown, ["native cannot"]);
    }
}
