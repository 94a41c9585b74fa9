//! Names of users and groups by the lists of an image. A stranger's text: read within bounds, and only for numbers.

use stockade_core::{Error, ErrorCode, Result, User};
use stockade_images::CopySource;

use super::BUILD_OPERATION;

const MAX_LIST_BYTES: u64 = 1 << 20;

/// The user that `USER` means: numbers, or names of the image's lists.
pub(super) fn resolve_user(given: &str, tree: &CopySource) -> Result<User> {
    let (user, group) = given.split_once(':').map_or((given, None), |(u, g)| (u, Some(g)));
    let entry = find_entry(tree, "etc/passwd", user)?;
    let number = |text: &str| text.parse::<u32>().ok();
    let uid = number(user).or_else(|| number(entry.as_ref()?.get(2)?));
    let gid = match group {
        Some(group) => {
            let entry = find_entry(tree, "etc/group", group)?;
            number(group).or_else(|| number(entry.as_ref()?.get(2)?))
        }
        None => Some(entry.as_ref().and_then(|entry| number(entry.get(3)?)).unwrap_or(0)),
    };
    match (uid, gid) {
        (Some(uid), Some(gid)) => Ok(User { uid, gid }),
        _ => {
            let message = format!("the image has no user `{}`", given.escape_debug());
            Err(Error::new(ErrorCode::NotFound, BUILD_OPERATION, message)
                .remedy("give numbers: USER 1000:1000"))
        }
    }
}

/// The fields of the line that begins with a name or has this number.
fn find_entry(tree: &CopySource, list: &str, name: &str) -> Result<Option<Vec<String>>> {
    let text = tree.read_small(list, MAX_LIST_BYTES)?.unwrap_or_default();
    let lines = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut fitting =
        lines.filter(|fields| fields.first() == Some(&name) || fields.get(2) == Some(&name));
    Ok(fitting.next().map(|fields| fields.into_iter().map(str::to_owned).collect()))
}

#[cfg(test)]
mod tests {
    use stockade_images::IgnoreRules;

    use super::*;

    #[test]
    fn names_are_those_of_the_image_and_numbers_need_none() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        let passwd = "root:x:0:0::/root:/bin/sh\nweb:x:33:44::/:/bin/sh\n";
        std::fs::write(dir.path().join("etc/passwd"), passwd).unwrap();
        std::fs::write(dir.path().join("etc/group"), "staff:x:50:\n").unwrap();
        let tree = CopySource::open(dir.path(), IgnoreRules::default()).unwrap();
        let user = |given| resolve_user(given, &tree).map(|user| (user.uid, user.gid)).ok();
        assert_eq!(user("web"), Some((33, 44)));
        assert_eq!(user("33"), Some((33, 44)));
        assert_eq!(user("web:staff"), Some((33, 50)));
        assert_eq!((user("7"), user("7:8")), (Some((7, 0)), Some((7, 8))));
        assert_eq!((user("none"), user("web:none")), (None, None));
    }
}
