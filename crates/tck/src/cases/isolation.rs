//! What must not be seen, read, written or signalled from inside (C-03, C-17, C-18).

use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};
use stockade_core::Feature;

use crate::case::{case, check, same};
use crate::{Case, Kit, Room, Verdict};

pub(super) const ISOLATION_CASES: &[Case] = &[
    case!("no file in the workspace can be made to run as its owner", "C-18", set_id)
        .needs(&[Feature::LocalWorkspace, Feature::HostImage])
        .isolation(),
    case!(
        "the host's contexts for asynchronous input and output are not to be had",
        "C-18",
        check_aio_contexts_refused
    )
    .needs(&[Feature::HostImage])
    .isolation(),
    case!("huge pages of the host are not to be had", "C-18", check_huge_pages_refused)
        .needs(&[Feature::HostImage])
        .isolation(),
    case!("private files of the host cannot be read", "C-03", private_files)
        .needs(&[Feature::FilesystemIsolation])
        .isolation(),
    case!("files of the host cannot be written", "C-03", host_not_writable)
        .needs(&[Feature::FilesystemIsolation])
        .isolation(),
    case!("processes of the host cannot be seen", "C-03", host_processes)
        .needs(&[Feature::ProcessIsolation])
        .isolation(),
    case!("processes of the host cannot be signalled", "C-03", host_signals)
        .needs(&[Feature::ProcessIsolation])
        .isolation(),
    case!("processes of another sandbox cannot be seen", "C-17", other_processes)
        .needs(&[Feature::ProcessIsolation])
        .isolation(),
    case!("temporary files of another sandbox cannot be seen", "C-17", other_files)
        .needs(&[Feature::FilesystemIsolation])
        .isolation(),
    case!("a program has no capability and can gain none", "C-03", no_privilege)
        .needs(&[Feature::FilesystemIsolation])
        .isolation(),
    case!("no descriptor of the host is open inside", "C-03", check_no_leaked_descriptors)
        .isolation(),
];

/// What the kernel tells root alone, whom a guest may be: addresses, and what the host's memory is used for.
const KERNEL_FILES: [&str; 3] = ["/proc/vmallocinfo", "/proc/slabinfo", "/proc/pagetypeinfo"];

async fn private_files(kit: Kit) -> Verdict {
    let secret = kit.outside().join("secret");
    std::fs::write(&secret, "secret")?;
    let room = kit.room().await?;
    let seen = room.facts(["read", &secret.to_string_lossy()]).await?;
    check!(seen["ok"] == json!(false), "expected the file to be out of reach, saw {seen}");
    let shadow = room.facts(["read", "/etc/shadow"]).await?;
    check!(shadow["ok"] == json!(false), "expected no password file, saw one");
    for path in KERNEL_FILES {
        let seen = room.facts(["read", path]).await?;
        let is_empty = seen["hex"] == json!("");
        check!(seen["ok"] == json!(false) || is_empty, "expected {path} to be masked, saw it");
    }
    home_is_absent(&room).await
}

/// Nothing that lies in the home directory of the user who runs the kit may be there.
async fn home_is_absent(room: &Room) -> Verdict {
    let Some(home) = std::env::var("HOME").ok().filter(|home| home.len() > 1) else {
        return Ok(());
    };
    let listed = room.facts(["list", &home]).await?["names"].clone();
    let seen: Vec<&Value> = listed.as_array().into_iter().flatten().collect();
    for entry in std::fs::read_dir(&home).into_iter().flatten().flatten() {
        let name = json!(entry.file_name().to_string_lossy());
        check!(!seen.contains(&&name), "expected nothing of the home directory, saw {name}");
    }
    Ok(())
}

async fn host_not_writable(kit: Kit) -> Verdict {
    let kept = kit.outside().join("kept");
    std::fs::write(&kept, "as it was")?;
    let room = kit.room().await?;
    room.facts(["write", &kept.to_string_lossy(), "changed"]).await?;
    room.facts(["remove", &kept.to_string_lossy()]).await?;
    let new = kit.outside().join("new");
    room.facts(["write", &new.to_string_lossy(), "made"]).await?;
    same!("the host's file", std::fs::read_to_string(&kept).ok().as_deref(), Some("as it was"));
    check!(!new.exists(), "expected no new file on the host, saw one");
    Ok(())
}

/// A process of the host that ends with the case.
struct Bystander(Option<Child>);

impl Bystander {
    fn start(kit: &Kit, tag: &str) -> Verdict<Self> {
        if !kit.is_native() {
            return Ok(Self(None));
        }
        let mut command = Command::new(kit.programs().join("probe"));
        command.args(["sleep", "600000", tag]).stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self(Some(command.spawn()?)))
    }

    fn id(&self) -> u32 {
        self.0.as_ref().map_or(1, Child::id)
    }

    fn is_alive(&mut self) -> Verdict<bool> {
        self.0.as_mut().map_or(Ok(true), |child| Ok(child.try_wait()?.is_none()))
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have been ended already; nothing is to be done about a failure here.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

async fn host_processes(kit: Kit) -> Verdict {
    let tag = format!("{}bystander", kit.mark());
    let bystander = Bystander::start(&kit, &tag)?;
    let found = kit.facts(["find-process", &tag]).await?["found"].clone();
    drop(bystander);
    same!("processes of the host that can be seen", found, json!(0));
    Ok(())
}

async fn host_signals(kit: Kit) -> Verdict {
    let mut bystander = Bystander::start(&kit, "bystander")?;
    let id = bystander.id().to_string();
    let facts = kit.facts(["kill", &id, "9"]).await?;
    if facts["ok"] == json!(true) {
        // It may have been a process of the sandbox with the same number: the host's own tells.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    check!(bystander.is_alive()?, "expected the host's process to live, but it was ended");
    Ok(())
}

async fn other_processes(kit: Kit) -> Verdict {
    let tag = format!("{}sleeper", kit.mark());
    let (one, two) =
        (kit.room_with(kit.spec_apart(1)?).await?, kit.room_with(kit.spec_apart(2)?).await?);
    let _running = one.start_ready(["sleep", "600000", &tag]).await?;
    let found = two.facts(["find-process", &tag]).await?["found"].clone();
    same!("processes of the other sandbox that can be seen", found, json!(0));
    Ok(())
}

async fn other_files(kit: Kit) -> Verdict {
    let (one, two) =
        (kit.room_with(kit.spec_apart(1)?).await?, kit.room_with(kit.spec_apart(2)?).await?);
    let mut leaked = Vec::new();
    for directory in ["/tmp", "/var/tmp", "/dev/shm"] {
        let name = format!("{directory}/{}", kit.mark());
        one.facts(["write", &name, "of one"]).await?;
        if two.facts(["read", &name]).await?["ok"] == json!(true) {
            leaked.push(name.clone());
        }
        one.facts(["remove", &name]).await?;
    }
    check!(leaked.is_empty(), "expected nothing of the other sandbox, saw {leaked:?}");
    Ok(())
}

async fn no_privilege(kit: Kit) -> Verdict {
    let facts = kit.facts(["report"]).await?;
    if kit.is_wasm() {
        // There is no call that could tell, nor one that a privilege could be used with.
        same!(
            "privileges",
            (&facts["noNewPrivs"], &facts["capabilities"]),
            (&json!(null), &json!(null))
        );
        return Ok(());
    }
    same!("no_new_privs", facts["noNewPrivs"], json!("1"));
    // The bounding set can be emptied only with a capability; with no_new_privs it gives nothing.
    let bounding = kit.subject().has_namespaces().then_some("bounding");
    for set in ["inheritable", "permitted", "effective", "ambient"].into_iter().chain(bounding) {
        same!(set, facts["capabilities"][set], json!("0000000000000000"));
    }
    Ok(())
}

async fn check_no_leaked_descriptors(kit: Kit) -> Verdict {
    let secret = kit.outside().join("descriptor");
    std::fs::write(&secret, "secret")?;
    // Open without O_CLOEXEC: a backend that only calls exec would pass the descriptor on to the guest.
    let _open = rustix::fs::open(&secret, OFlags::RDONLY, Mode::empty())?;
    let facts = kit.facts(["report"]).await?;
    let open = facts["descriptors"].as_object().cloned().unwrap_or_default();
    let path = secret.to_string_lossy().into_owned();
    let leaked = open.values().any(|target| *target == json!(path));
    check!(!leaked, "expected no descriptor of the host, saw {open:?}");
    Ok(())
}

async fn set_id(kit: Kit) -> Verdict {
    let facts = kit.facts(["set-id", "file"]).await?;
    check!(facts["ok"] == json!(false), "expected a refusal, saw {facts}");
    for entry in std::fs::read_dir(kit.workspace())? {
        let entry = entry?;
        let mode = entry.metadata()?.mode();
        check!(mode & 0o6000 == 0, "expected plain modes, saw {mode:o} of {:?}", entry.path());
    }
    Ok(())
}

async fn check_aio_contexts_refused(kit: Kit) -> Verdict {
    let facts = kit.facts(["contexts"]).await?;
    check!(facts["ok"] == json!(false), "expected a refusal, saw {facts}");
    Ok(())
}

async fn check_huge_pages_refused(kit: Kit) -> Verdict {
    let facts = kit.facts(["huge-pages"]).await?;
    check!(facts["ok"] == json!(false), "expected a refusal, saw {facts}");
    Ok(())
}
