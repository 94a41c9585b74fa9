//! `pull STORE IMAGE`: pulls an image without walls and prints the digest of its manifest. The tests kill it.

use std::process::ExitCode;

use stockade_images::{
    CredentialFiles, ImageError, ImageStore, InProcess, PullOptions, PullPolicy,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(store), Some(image)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: pull STORE IMAGE");
        return ExitCode::from(2);
    };
    match pull(&store, &image).await {
        Ok(manifest) => {
            println!("{manifest}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("pull: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn pull(store: &str, image: &str) -> Result<String, ImageError> {
    let store = ImageStore::open(store)?;
    let options = PullOptions {
        policy: PullPolicy::Always,
        credentials: CredentialFiles::at([]),
        ..PullOptions::default()
    };
    let image = store.pull(&image.parse()?, &options, &InProcess, &()).await?;
    Ok(image.manifest.to_string())
}
