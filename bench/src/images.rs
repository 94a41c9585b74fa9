//! Images: the first run of one from a registry on loopback, then further runs beside the host's own root; with Docker and
//! Podman where they are installed. The image has thirty layers and 200 MiB that cannot be compressed.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};

use crate::Measured;
use crate::native::{ProgramDir, spawn, timed};
use crate::report::BenchReport;
use crate::table::Row;

const REGISTRY_PROGRAM: &str = "docker-registry";
/// How the registry says where it listens.
const LISTENING_MESSAGE: &str = "msg=\"listening on ";
const BUILT_NAME: &str = "localhost/stockade-bench:1";
const DATA_LAYERS: usize = 29;
const DATA_LAYER_BYTES: u64 = 7 << 20;
const COLD_ROUNDS: usize = 3;
const WARM_ROUNDS: usize = 50;

/// Prints what the first and what further runs take.
pub fn measure(report: &mut BenchReport) -> Measured {
    let bench = ImageBench { place: ProgramDir::new()?, files: tempfile::tempdir()? };
    let Ok(registry) = BenchRegistry::start(bench.files.path()) else {
        report.title(format!("images: not measured: {REGISTRY_PROGRAM} cannot be started"));
        return Ok(());
    };
    let name = format!("{}/bench:1", registry.address);
    bench.publish_image(&name)?;
    let clients = bench.find_clients(&name)?;
    bench.measure_cold(report, &clients)?;
    bench.measure_warm(report, &clients)?;
    let stored = tree_bytes(&bench.files.path().join("state/images"))? >> 20;
    report.note(format!("Stockade's store with the image, blobs and tree: {stored} MiB"));
    // An engine's image that stays would make the next first run a further one.
    clients.iter().try_for_each(|client| spawn(&mut bench.command(client, &client.forget_words)))
}

/// Where commands stand, and what the guest must not see of it: state, registry and the image's files.
struct ImageBench {
    place: ProgramDir,
    files: tempfile::TempDir,
}

/// A registry of this run alone. It ends when this is dropped.
struct BenchRegistry {
    child: Child,
    address: String,
}

impl BenchRegistry {
    fn start(dir: &Path) -> Result<Self, Box<dyn Error>> {
        let (config, storage) = (dir.join("registry.yml"), dir.join("registry"));
        let text = format!(
            "version: 0.1\nlog: {{level: info}}\n\
             storage: {{filesystem: {{rootdirectory: {storage:?}}}, delete: {{enabled: true}}}}\n\
             http: {{addr: \"127.0.0.1:0\"}}\n"
        );
        fs::write(&config, text)?;
        let mut server = Process::new(REGISTRY_PROGRAM);
        server.arg("serve").arg(&config).stdin(Stdio::null()).stdout(Stdio::null());
        let mut registry =
            Self { child: server.stderr(Stdio::piped()).spawn()?, address: String::new() };
        let said = registry.child.stderr.take().ok_or("it says nothing")?;
        let mut lines = BufReader::new(said).lines().map_while(Result::ok);
        let address = lines.by_ref().find_map(|line| {
            let (_, rest) = line.split_once(LISTENING_MESSAGE)?;
            Some(rest.split('"').next()?.to_owned())
        });
        registry.address = address.ok_or("it listens nowhere")?;
        // What it says later is read and dropped, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(registry)
    }
}

impl Drop for BenchRegistry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Something that pulls images and runs them.
struct ImageClient {
    cold_name: &'static str,
    warm_name: &'static str,
    program: PathBuf,
    run_words: Vec<String>,
    forget_words: Vec<String>,
}

fn to_words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The command beside this program.
fn find_stockade(name: &str) -> Result<ImageClient, Box<dyn Error>> {
    Ok(ImageClient {
        cold_name: "stockade: pull and run",
        warm_name: "stockade run --image NAME",
        program: std::env::current_exe()?.with_file_name("stockade"),
        run_words: to_words(&["run", "--backend", "native", "--image", name, "--", "./true"]),
        forget_words: to_words(&["image", "rm", name]),
    })
}

impl ImageBench {
    fn command(&self, client: &ImageClient, words: &[String]) -> Process {
        let mut command = Process::new(&client.program);
        command.env("STOCKADE_STATE_DIR", self.files.path().join("state")).args(words);
        command.current_dir(self.place.workspace()).stderr(Stdio::null());
        command
    }

    /// Builds the image, pushes it, and forgets it.
    fn publish_image(&self, name: &str) -> Measured {
        let context = self.files.path().join("context");
        fs::create_dir(&context)?;
        fs::copy(&self.place.program, context.join("true"))?;
        let mut dockerfile = String::from("FROM scratch\nCOPY true /true\n");
        for layer in 0..DATA_LAYERS {
            let mut random = File::open("/dev/urandom")?.take(DATA_LAYER_BYTES);
            io::copy(&mut random, &mut File::create(context.join(format!("data{layer}")))?)?;
            dockerfile.push_str(&format!("COPY data{layer} /data/{layer}\n"));
        }
        fs::write(context.join("Dockerfile"), dockerfile)?;
        let context = context.to_str().ok_or("the directory's name is not text")?;
        let stockade = find_stockade(name)?;
        for words in [
            &["build", "-t", BUILT_NAME, context][..],
            &["push", BUILT_NAME, "--to", name],
            &["rm", BUILT_NAME],
            &["prune", "--all"],
        ] {
            let words = to_words(&[&["image"], words].concat());
            spawn(&mut self.command(&stockade, &words))?;
        }
        Ok(())
    }

    /// Stockade first, then the engines that work here.
    fn find_clients(&self, name: &str) -> Result<Vec<ImageClient>, Box<dyn Error>> {
        let mut clients = vec![find_stockade(name)?];
        let plain = ["run", "--rm", "--network", "none"];
        for (program, cold_name, warm_name, flags) in [
            ("docker", "docker: pull and run", "docker run", &[][..]),
            ("podman", "podman: pull and run", "podman run", &["--tls-verify=false"][..]),
        ] {
            let client = ImageClient {
                cold_name,
                warm_name,
                program: program.into(),
                run_words: to_words(&[&plain[..], flags, &[name, "/true"]].concat()),
                forget_words: to_words(&["rmi", "-f", name]),
            };
            if spawn(&mut self.command(&client, &to_words(&["info"]))).is_ok() {
                clients.push(client);
            }
        }
        Ok(clients)
    }

    fn measure_cold(&self, report: &mut BenchReport, clients: &[ImageClient]) -> Measured {
        let mut rows: Vec<_> = clients.iter().map(|client| Row::new(client.cold_name)).collect();
        for round in 0..COLD_ROUNDS {
            for (client, row) in clients.iter().zip(&mut rows) {
                if round > 0 {
                    spawn(&mut self.command(client, &client.forget_words))?;
                }
                row.add(timed(|| spawn(&mut self.command(client, &client.run_words)))?);
            }
        }
        let layers = DATA_LAYERS + 1;
        report.title(format!(
            "images: first run of {layers} layers and 200 MiB from a registry on loopback, \
             {COLD_ROUNDS} rounds, taking turns"
        ));
        report.timings(&mut rows);
        Ok(())
    }

    fn measure_warm(&self, report: &mut BenchReport, clients: &[ImageClient]) -> Measured {
        let on_host = find_stockade("host")?;
        let mut host = Row::new("stockade run --image host").into_baseline();
        let mut rows: Vec<_> = clients.iter().map(|client| Row::new(client.warm_name)).collect();
        for _ in 0..WARM_ROUNDS {
            host.add(timed(|| spawn(&mut self.command(&on_host, &on_host.run_words)))?);
            for (client, row) in clients.iter().zip(&mut rows) {
                row.add(timed(|| spawn(&mut self.command(client, &client.run_words)))?);
            }
        }
        rows.insert(0, host);
        report.title(format!("images: further runs, {WARM_ROUNDS} rounds, taking turns"));
        report.timings(&mut rows);
        Ok(())
    }
}

/// What the files of a tree take.
fn tree_bytes(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { tree_bytes(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}
