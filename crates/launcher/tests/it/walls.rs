//! What a program inside sees and may do, as root and as an ordinary user, on the real kernel.
use crate::common;
use crate::common::{Owner, directory, for_each_owner, launch, local};
use serde_json::json;
use stockade_launcher::{DENIED_SYSCALLS, LaunchPlan, PlanMount, PlanNetwork, Rlimits, Wall};

fn plan() -> LaunchPlan {
    LaunchPlan::default()
}

const EROFS: i64 = libc::EROFS as i64;
const EPERM: i64 = libc::EPERM as i64;
const EACCES: i64 = libc::EACCES as i64;

#[test]
fn the_agent_is_process_one_and_whom_the_plan_names() {
    for_each_owner(|_, launcher| {
        let named = LaunchPlan { id: "named".into(), uid: 1234, gid: 4321, ..plan() };
        let mut inside = launch(launcher, &named);
        assert_eq!(inside.ask(json!({ "ids": "" })), json!({ "uid": 1234, "gid": 4321, "pid": 1 }));
        let args = inside.ask(json!({ "args": "" }));
        assert_eq!(args, json!(["stockade-agent", "3", "/workspace", "named"]));
    });
}

#[test]
fn a_guest_that_is_root_inside_has_no_capabilities_either() {
    for_each_owner(|_, launcher| {
        let mut inside = launch(launcher, &LaunchPlan { uid: 0, gid: 0, ..plan() });
        let status = inside.run(&["cat", "/proc/self/status"]);
        for line in status.lines().filter(|line| line.starts_with("Cap")) {
            assert!(line.ends_with("0000000000000000"), "{line}");
        }
        assert!(status.contains("NoNewPrivs:\t1"));
        assert!(status.contains("Seccomp:\t2"));
    });
}

#[test]
fn no_namespace_is_shared_with_the_host() {
    for_each_owner(|_, launcher| {
        let mut inside = launch(launcher, &plan());
        for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"] {
            let path = format!("/proc/self/ns/{kind}");
            let theirs = inside.ask(json!({ "link": path }));
            let ours = std::fs::read_link(&path).unwrap();
            assert!(theirs.is_string());
            assert_ne!(theirs, json!(ours), "{kind}");
        }
    });
}

#[test]
fn no_namespace_is_shared_between_sandboxes() {
    for_each_owner(|_, launcher| {
        let mut sandboxes = [0; 4].map(|_| launch(launcher, &plan()));
        for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"] {
            let path = format!("/proc/self/ns/{kind}");
            let of = |inside: &mut common::Inside| inside.ask(json!({ "link": path })).to_string();
            let different: std::collections::BTreeSet<_> = sandboxes.iter_mut().map(of).collect();
            assert_eq!(different.len(), sandboxes.len(), "{kind}");
        }
    });
}

#[test]
fn homes_state_and_secrets_of_the_host_are_absent() {
    for_each_owner(|_, launcher| {
        let mut inside = launch(launcher, &plan());
        assert_eq!(inside.list("/home").unwrap(), ["sandbox"]);
        for absent in ["/root", "/srv", "/mnt", "/media", "/boot", "/var/lib", "/work", "/opt"] {
            assert_eq!(inside.list(absent), None, "{absent}");
        }
        for absent in ["shadow", "gshadow", "sudoers", "machine-id", "ssh/ssh_config", "pip.conf"] {
            assert_eq!(inside.read(&format!("/etc/{absent}")), None, "{absent}");
        }
        assert_eq!(inside.list("/sys").unwrap(), Vec::<String>::new());
        assert!(!inside.read("/etc/passwd").unwrap().contains("postgres"));
    });
}

#[test]
fn only_the_private_places_and_the_workspace_can_be_written() {
    for_each_owner(|_, launcher| {
        let mut inside = launch(launcher, &plan());
        for refused in ["/x", "/usr/x", "/etc/x", "/etc/passwd", "/dev/x", "/home/x", "/var/x"] {
            let errno = inside.write(refused);
            assert!([EROFS, EACCES].contains(&errno), "{refused}: {errno}");
        }
        for place in ["/tmp", "/var/tmp", "/run", "/home/sandbox", "/dev/shm", "/workspace"] {
            assert_eq!(inside.write(&format!("{place}/x")), 0, "{place}");
        }
        assert_eq!(inside.write("/dev/null"), 0);
        let mode = json!({ "run": ["chmod", "0600", "/dev/null"] });
        assert_ne!(inside.ask(mode)["code"], 0, "the node is the host's");
        assert_eq!(inside.write("/proc/sys/kernel/hostname"), EROFS);
        assert_eq!(inside.write("/proc/self/oom_score_adj"), EROFS);
    });
}

#[test]
fn the_private_places_are_bounded_together() {
    for_each_owner(|_, launcher| {
        let mut inside = launch(launcher, &LaunchPlan { tmp_bytes: 1 << 20, ..plan() });
        let half = "head -c 700000 /dev/zero > /tmp/a && head -c 700000 /dev/zero > /run/b";
        let result = inside.ask(json!({ "run": ["sh", "-c", half] }));
        assert_ne!(result["code"], 0, "{result}");
    });
}

#[test]
fn what_tells_about_the_host_is_masked_in_proc() {
    for_each_owner(|_, launcher| {
        let mut inside = launch(launcher, &plan());
        for file in ["keys", "key-users", "timer_list", "kpagecount"] {
            assert_eq!(inside.read(&format!("/proc/{file}")).unwrap_or_default(), "", "{file}");
        }
        assert_eq!(inside.list("/proc/acpi").unwrap_or_default(), Vec::<String>::new());
        assert!(inside.read("/proc/cpuinfo").unwrap().contains("processor"));
        let processes = inside.list("/proc").unwrap();
        let numbers = processes.iter().filter(|name| name.parse::<u32>().is_ok());
        assert_eq!(numbers.count(), 1);
    });
}

#[test]
fn every_denied_system_call_answers_with_its_errno() {
    for_each_owner(|_, launcher| {
        let mut inside = launch(launcher, &plan());
        for denied in DENIED_SYSCALLS {
            let errno = inside.call(&[denied.number]);
            assert_eq!(errno, i64::from(denied.errno), "{}", denied.name);
        }
    });
}

#[test]
fn arguments_decide_about_clone_sockets_ioctls_and_personalities() {
    for_each_owner(|_, launcher| {
        let mut inside = launch(launcher, &plan());
        let refused = libc::EAFNOSUPPORT as i64;
        let (inet, stream, raw) = (libc::AF_INET as i64, 1, 3);
        for namespace in [libc::CLONE_NEWUSER, libc::CLONE_NEWNET, libc::CLONE_NEWNS] {
            let flags = i64::from(namespace | libc::SIGCHLD);
            assert_eq!(inside.call(&[libc::SYS_clone, flags]), EPERM);
        }
        for (family, kind, protocol, errno) in [
            (libc::AF_UNIX as i64, stream, 0, 0),
            (inet, stream, 0, 0),
            (inet, stream | libc::SOCK_CLOEXEC as i64, 6, 0),
            (inet, 2, 17, 0),
            (inet, stream, libc::IPPROTO_SCTP as i64, refused),
            (inet, raw, 1, refused),
            (libc::AF_NETLINK as i64, raw, 0, 0),
            (libc::AF_NETLINK as i64, raw, 12, refused),
            (libc::AF_PACKET as i64, raw, 0, refused),
            (libc::AF_VSOCK as i64, stream, 0, refused),
            (libc::AF_ALG as i64, 5, 0, refused),
        ] {
            let got = inside.call(&[libc::SYS_socket, family, kind, protocol]);
            assert_eq!(got, errno, "{family} {kind} {protocol}");
        }
        for request in [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCSETD] {
            assert_eq!(inside.call(&[libc::SYS_ioctl, 0, request as i64]), EPERM);
        }
        assert_eq!(inside.call(&[libc::SYS_ioctl, 0, libc::TCGETS as i64]), libc::ENOTTY as i64);
        assert_eq!(inside.call(&[libc::SYS_personality, 0xffff_ffff]), 0);
        assert_eq!(inside.call(&[libc::SYS_personality, 0x40_0000]), EPERM);
        assert_eq!(inside.call(&[500]), libc::ENOSYS as i64);
    });
}

#[test]
fn no_file_can_be_made_to_run_as_its_owner() {
    for_each_owner(|owner, launcher| {
        let shown = directory(owner);
        let workspace = local(shown.path());
        let mut inside = launch(launcher, &LaunchPlan { workspace, ..plan() });
        for place in ["/workspace", "/tmp"] {
            let answers = inside.ask(json!({ "mode": place }));
            for (way, errno) in answers.as_object().unwrap() {
                let harmless = ["plain", "sticky", "reads"].contains(&way.as_str());
                assert_eq!(errno, if harmless { 0 } else { EPERM }, "{place}: {way}");
            }
        }
    });
}

#[test]
fn a_guest_takes_a_part_of_its_users_watches_and_not_all() {
    for_each_owner(|_, launcher| {
        let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap();
        let most: u64 = most.trim().parse().unwrap();
        let mut inside = launch(launcher, &plan());
        let made = inside.ask(json!({ "inotify": "" })).as_u64().unwrap();
        assert!((1..=most / 2).contains(&made), "{made} of {most}");
    });
}

#[test]
fn what_root_alone_may_read_in_proc_is_masked() {
    for_each_owner(|_, launcher| {
        let mut inside = launch(launcher, &LaunchPlan { uid: 0, gid: 0, ..plan() });
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            use std::os::unix::fs::MetadataExt;
            let Ok(found) = entry.metadata() else { continue };
            let path = entry.path().to_str().unwrap().to_owned();
            if found.is_file() && found.mode() & 0o004 == 0 {
                assert!(inside.read(&path).is_none_or(|text| text.is_empty()), "{path}");
            }
        }
        assert_eq!(inside.list("/proc/tty/driver"), Some(Vec::new()));
    });
}

#[test]
fn a_further_device_is_there_for_whom_it_is_meant_and_for_nobody_else() {
    let exists = |name: &&str| std::path::Path::new("/dev").join(name).exists();
    let spare = ["fuse", "kmsg"].into_iter().find(exists).unwrap();
    let look =
        format!("if [ -c /dev/{spare} ] && : < /dev/{spare}; then echo yes; else echo no; fi");
    for_each_owner(|_, launcher| {
        let trusted = LaunchPlan { devices: vec![spare.to_owned()], ..plan() };
        for (plan, there) in [(plan(), "no\n"), (trusted, "yes\n"), (plan(), "no\n")] {
            let mut inside = launch(launcher, &plan);
            assert_eq!(inside.run(&["sh", "-c", &look]), there);
        }
    });
}

#[test]
fn no_descriptor_of_the_host_is_left_open() {
    for_each_owner(|_, launcher| {
        let mut inside = launch(launcher, &plan());
        let mut open = inside.list("/proc/self/fd").unwrap();
        open.sort();
        // 4 is the stand-in's own copy of the pipe, 5 the directory it lists.
        assert_eq!(open, ["0", "1", "2", "3", "4", "5"]);
        for stream in 0..3 {
            let target = inside.ask(json!({ "link": format!("/proc/self/fd/{stream}") }));
            assert_eq!(target, json!("/dev/null"));
        }
    });
}

#[test]
fn a_signal_to_the_guests_own_group_does_not_reach_the_launcher() {
    for_each_owner(|_, launcher| {
        let mut first = launch(launcher, &plan());
        let mut second = launch(launcher, &plan());
        assert_eq!(first.call(&[libc::SYS_kill, 0, libc::SIGKILL as i64]), 0);
        assert_eq!(first.call(&[libc::SYS_kill, -1, libc::SIGKILL as i64]), libc::ESRCH as i64);
        second.run(&["true"]);
        launch(launcher, &plan());
    });
}

#[test]
fn limits_are_those_of_the_plan() {
    for_each_owner(|_, launcher| {
        let rlimits = Rlimits { nofile: Some(99), fsize: Some(1 << 20), ..Rlimits::default() };
        let mut inside = launch(launcher, &LaunchPlan { rlimits, ..plan() });
        assert_eq!(inside.run(&["sh", "-c", "ulimit -n; ulimit -c"]), "99\n0\n");
        let too_long = json!({ "run": ["sh", "-c", "head -c 2000000 /dev/zero > /tmp/long"] });
        assert_ne!(inside.ask(too_long)["code"], 0);
    });
}

#[test]
fn a_local_workspace_is_writable_or_read_only_by_mount() {
    for_each_owner(|owner, launcher| {
        let directory = directory(owner);
        let workspace = local(directory.path());
        let mut inside = launch(launcher, &LaunchPlan { workspace: workspace.clone(), ..plan() });
        assert_eq!(inside.write("/workspace/made"), 0);
        let on_host = std::fs::read_to_string(directory.path().join("made")).unwrap();
        assert_eq!(on_host, "written");
        let fixed = LaunchPlan { workspace, read_only: true, ..plan() };
        let mut inside = launch(launcher, &fixed);
        assert_eq!(inside.read("/workspace/made").as_deref(), Some("written"));
        assert_eq!(inside.write("/workspace/made"), EROFS);
        let ephemeral = LaunchPlan { read_only: true, ..plan() };
        assert_eq!(launch(launcher, &ephemeral).write("/workspace/made"), EROFS);
    });
}

#[test]
fn extra_mounts_appear_at_their_targets() {
    for_each_owner(|owner, launcher| {
        let directory = directory(owner);
        let file = directory.path().join("file");
        std::fs::write(&file, "content").unwrap();
        common::give(owner, &file);
        let mount = |source: &std::path::Path, target: &str, read_only| PlanMount {
            source: source.canonicalize().unwrap(),
            target: target.into(),
            read_only,
        };
        let mounts = vec![
            mount(directory.path(), "/data/in", true),
            mount(directory.path(), "/data/out", false),
            mount(&file, "/opt/one/file", true),
            mount(directory.path(), "/tmp/deep/er", true),
        ];
        let mut inside = launch(launcher, &LaunchPlan { mounts, ..plan() });
        assert_eq!(inside.read("/opt/one/file").as_deref(), Some("content"));
        assert_eq!(inside.read("/tmp/deep/er/file").as_deref(), Some("content"));
        assert_eq!(inside.write("/data/in/new"), EROFS);
        assert_eq!(inside.write("/opt/one/file"), EROFS);
        assert_eq!(inside.write("/data/out/new"), 0);
        assert!(directory.path().join("new").exists());
    });
}

#[test]
fn neither_links_nor_pipes_can_be_made_in_a_mount_for_plain_files() {
    for_each_owner(|owner, launcher| {
        let directory = directory(owner);
        let source = directory.path().canonicalize().unwrap();
        let mounts = vec![PlanMount { source, target: "/data".into(), read_only: false }];
        let plain_files = vec!["/data".into()];
        let mut inside = launch(launcher, &LaunchPlan { mounts, plain_files, ..plan() });
        let made = "mkdir /data/dir && echo x > /data/dir/file && mv /data/dir /data/other";
        inside.run(&["sh", "-c", made]);
        let refused = "! ln -s x /data/link && ! mkfifo /data/other/pipe && ln -s x /tmp/link";
        inside.run(&["sh", "-c", refused]);
        assert!(!directory.path().join("link").is_symlink());
    });
}

#[test]
fn a_directory_can_be_the_root() {
    for_each_owner(|owner, launcher| {
        let image = directory(owner);
        std::os::unix::fs::symlink("usr/bin", image.path().join("bin")).unwrap();
        for made in ["usr", "etc", "home/somebody"] {
            std::fs::create_dir_all(image.path().join(made)).unwrap();
        }
        std::fs::write(image.path().join("etc/mark"), "image").unwrap();
        let root = stockade_launcher::Root::Directory(image.path().canonicalize().unwrap());
        let mounts = borrowed_libraries();
        let mut inside = launch(launcher, &LaunchPlan { root, mounts, ..plan() });
        assert_eq!(inside.read("/etc/mark").as_deref(), Some("image"));
        assert_eq!(inside.read("/etc/passwd"), None);
        assert_eq!(inside.list("/home").unwrap(), ["sandbox"]);
        assert_eq!(inside.write("/etc/mark"), EROFS);
        assert_eq!(inside.write("/tmp/x"), 0);
    });
}

/// The host's libraries: the stand-in agent is linked dynamically, so that an image borrows them.
fn borrowed_libraries() -> Vec<PlanMount> {
    let library = |name: &str| PlanMount {
        source: std::path::Path::new("/").join(name).canonicalize().unwrap(),
        target: format!("/{name}").into(),
        read_only: true,
    };
    ["lib", "lib64"].map(library).to_vec()
}

#[test]
fn an_image_whose_var_has_no_tmp_has_every_private_place_and_its_own_files() {
    for_each_owner(|owner, launcher| {
        let image = directory(owner);
        for made in ["usr", "var/lib/own"] {
            std::fs::create_dir_all(image.path().join(made)).unwrap();
        }
        std::fs::write(image.path().join("var/lib/own/mark"), "image").unwrap();
        std::fs::write(image.path().join("var/file"), "image").unwrap();
        let root = stockade_launcher::Root::Directory(image.path().canonicalize().unwrap());
        // Only root can change a copy of what is root's.
        let both = [None, Some(16 << 20)];
        let ways = if owner == Owner::Root { &both[..] } else { &both[..1] };
        for copy_on_write in ways.iter().copied() {
            let (root, mounts) = (root.clone(), borrowed_libraries());
            let plan = LaunchPlan { root, mounts, copy_on_write, ..plan() };
            let mut inside = launch(launcher, &plan);
            assert_eq!(inside.read("/var/lib/own/mark").as_deref(), Some("image"));
            assert_eq!(inside.read("/var/file").as_deref(), Some("image"));
            assert_eq!(inside.write("/var/tmp/x"), 0);
            let changed = if copy_on_write.is_some() { 0 } else { EROFS };
            assert_eq!(inside.write("/var/lib/own/x"), changed);
        }
        assert!(!image.path().join("var/tmp").exists());
    });
}

#[test]
fn an_image_of_ones_own_takes_changes_and_keeps_none() {
    for_each_owner(|owner, launcher| {
        let image = directory(owner);
        let etc = image.path().join("etc");
        std::fs::create_dir(&etc).unwrap();
        std::fs::write(etc.join("given"), "image").unwrap();
        [&etc, &etc.join("given")].into_iter().for_each(|path| common::give(owner, path));
        let root = stockade_launcher::Root::Directory(image.path().canonicalize().unwrap());
        let (mounts, copy_on_write) = (borrowed_libraries(), Some(16 << 20));
        let plan = LaunchPlan { root, mounts, copy_on_write, ..plan() };
        let mut inside = launch(launcher, &plan);
        for path in ["/etc/given", "/etc/new", "/new"] {
            assert_eq!(inside.write(path), 0, "{path}");
        }
        assert_eq!(std::fs::read_to_string(etc.join("given")).unwrap(), "image");
        assert!(!etc.join("new").exists() && !image.path().join("new").exists());
        assert_eq!(launch(launcher, &plan).read("/etc/given").as_deref(), Some("image"));
    });
}

#[test]
fn a_copy_on_write_root_takes_changes_and_the_host_keeps_none() {
    for_each_owner(|owner, launcher| {
        let plan = LaunchPlan { copy_on_write: Some(16 << 20), ..plan() };
        if owner == Owner::Ordinary {
            let failure = common::failure(common::try_launch(launcher, &plan));
            assert_eq!(failure.wall, Wall::CopyOnWrite);
            assert!(failure.remedy.is_some());
            return;
        }
        let mut inside = launch(launcher, &plan);
        for made in ["/usr/bin/stockade-test", "/etc/stockade-test", "/stockade-test"] {
            assert_eq!(inside.write(made), 0, "{made}");
            assert!(!std::path::Path::new(made).exists());
        }
        inside.run(&["rm", "/usr/bin/stockade-test", "/usr/bin/git"]);
        assert!(std::path::Path::new("/usr/bin/git").exists());
        assert_ne!(launch(launcher, &plan).read("/usr/bin/git"), Some(String::new()));
    });
}

#[test]
fn every_wall_comes_with_its_proof() {
    for_each_owner(|_, launcher| {
        let inside = launch(launcher, &plan());
        let walls: Vec<Wall> = inside.launched.walls.iter().map(|proof| proof.wall).collect();
        for wall in [
            Wall::Namespaces,
            Wall::Identity,
            Wall::Session,
            Wall::ParentDeath,
            Wall::Root,
            Wall::Workspace,
            Wall::Proc,
            Wall::Descriptors,
            Wall::Rlimits,
            Wall::Capabilities,
            Wall::Landlock,
            Wall::Seccomp,
        ] {
            assert!(walls.contains(&wall), "{wall}");
        }
    });
}

#[test]
fn root_can_map_the_guest_to_another_user_of_the_host() {
    for owner in common::owners() {
        let launcher = common::launcher(owner);
        let plan = LaunchPlan { host_uid: Some(65533), host_gid: Some(65533), ..plan() };
        match owner {
            Owner::Root => {
                let inside = launch(&launcher, &plan);
                let status =
                    std::fs::read_to_string(format!("/proc/{}/status", inside.launched.pid));
                assert!(status.unwrap().contains("Uid:\t65533\t65533\t65533\t65533"));
            }
            Owner::Ordinary => {
                let failure = common::failure(common::try_launch(&launcher, &plan));
                assert_eq!(failure.wall, Wall::Identity);
            }
        }
    }
}

mod needs_python {
    use super::*;

    #[test]
    fn the_network_is_denied_by_default_and_loopback_comes_up_when_asked() {
        for_each_owner(|_, launcher| {
            let connect = "import socket,sys\ns=socket.socket()\ns.bind(('127.0.0.1',0))\ns.listen()\n\
                       socket.create_connection(s.getsockname(),2)";
            let mut closed = launch(launcher, &plan());
            let interfaces = closed.read("/proc/net/dev").unwrap();
            assert_eq!(interfaces.lines().count(), 3, "two lines of heading and lo: {interfaces}");
            let result = closed.ask(json!({ "run": ["python3", "-c", connect] }));
            assert_ne!(result["code"], 0, "{result}");
            let mut open =
                launch(launcher, &LaunchPlan { network: PlanNetwork::Loopback, ..plan() });
            open.run(&["python3", "-c", connect]);
        });
    }

    #[test]
    fn a_foreign_abi_ends_the_process() {
        for_each_owner(|_, launcher| {
            let mut inside = launch(launcher, &plan());
            let x32 = "import ctypes\nctypes.CDLL(None).syscall(0x40000000+39)";
            let result = inside.ask(json!({ "run": ["python3", "-c", x32] }));
            assert_eq!(result["code"], json!(null), "{result}");
        });
    }

    #[test]
    fn ordinary_programs_run() {
        for_each_owner(|_, launcher| {
            let mut inside = launch(launcher, &plan());
            assert_eq!(inside.run(&["sh", "-c", "echo $((6*7))"]), "42\n");
            assert_eq!(inside.run(&["python3", "-c", "print(6*7)"]), "42\n");
            assert!(inside.run(&["git", "--version"]).starts_with("git version"));
            assert!(inside.run(&["ls", "-l", "/usr"]).contains("bin"));
            assert_eq!(inside.run(&["id", "-un"]), "sandbox\n");
            assert_eq!(inside.run(&["hostname"]), "stockade\n");
            inside.run(&["git", "init", "/workspace/repo"]);
            let moves = "cd /workspace && mkdir a b && echo x > a/f && mv a/f b/ && ln b/f g && \
                     ln -s g h && echo longer > g && : > g && test ! -s b/f && rm -r a b";
            inside.run(&["sh", "-c", moves]);
            let threads = "import threading\nt=threading.Thread(target=print,args=(1,))\nt.start()\n\
                       t.join()\nimport subprocess\nsubprocess.check_call(['true'])";
            assert_eq!(inside.run(&["python3", "-c", threads]), "1\n");
            let terminal = "import pty\npty.spawn(['stty','size'])";
            inside.run(&["python3", "-c", terminal]);
        });
    }
}
