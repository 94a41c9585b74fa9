//! The home directory where no variable names it, as in a cron job or a service: that of the user database.

#![allow(unsafe_code, reason = "setting a variable is unsafe where there may be other threads")]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

const USER_DATABASE: &str = "/etc/passwd";
/// The position of the user id in a line of the database, and that of the home directory.
const UID_FIELD: usize = 2;
const HOME_FIELD: usize = 5;

/// Sets `HOME` where it is missing or empty. Only for a process that has one thread yet.
pub fn set_missing_home() {
    if std::env::var_os("HOME").is_some_and(|home| !home.is_empty()) {
        return;
    }
    let Ok(database) = std::fs::read(USER_DATABASE) else { return };
    let uid = rustix::process::getuid().as_raw();
    if let Some(home) = find_home(&database, uid) {
        // SAFETY: this process has one thread, so that nothing reads variables meanwhile.
        unsafe { std::env::set_var("HOME", home) };
    }
}

/// The home directory of a user, if it is one.
fn find_home(database: &[u8], uid: u32) -> Option<OsString> {
    let wanted = uid.to_string();
    let mut lines = database.split(|byte| *byte == b'\n');
    let home = lines.find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        (*fields.get(UID_FIELD)? == wanted.as_bytes()).then(|| fields.get(HOME_FIELD).copied())?
    })?;
    let home = OsString::from_vec(home.to_vec());
    Path::new(&home).is_absolute().then_some(home)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_home_is_found_by_the_number() {
        let database = b"root:x:0:0::/root:/bin/sh\nshort:x:7\n\nada:x:10:10:A:/home/ada:/bin/sh\n\
            other:x:1:1::/home/other:\nservice:x:11:11::nowhere:\nempty:x:12:12:::";
        for (uid, home) in [(0, Some("/root")), (10, Some("/home/ada")), (1, Some("/home/other"))] {
            assert_eq!(find_home(database, uid), home.map(OsString::from), "{uid}");
        }
        for uid in [7, 11, 12, 100] {
            assert_eq!(find_home(database, uid), None, "{uid}");
        }
    }
}
