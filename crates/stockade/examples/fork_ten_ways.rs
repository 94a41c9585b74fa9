//! One sandbox is prepared, copied ten times, and each copy goes its own way.
//!
//! `cargo run --example fork_ten_ways`

use stockade::Stockade;

const COPIES: usize = 10;

#[tokio::main]
async fn main() -> stockade::Result<()> {
    let stockade = Stockade::open().await?;
    let base = stockade.sandbox().create().await?;
    base.shell("seq 1 100 > numbers").output().await?;

    let copies = base.fork(COPIES).await?;
    // Each copy has the files of the first and a workspace of its own: none sees what another does.
    let mut sums = Vec::new();
    for (way, copy) in copies.iter().enumerate() {
        let line =
            format!("sed -n '{}~10p' numbers > part; echo $(( $(paste -sd+ part) ))", way + 1);
        sums.push(copy.shell(line).output().await?.stdout_utf8().trim().to_owned());
    }
    println!("{}", sums.join(" "));
    let left = base.shell("ls").output().await?;
    println!("in the first: {}", left.stdout_utf8().trim());
    // Every sandbox of this engine ends here, in whatever order.
    drop(copies);
    stockade.close().await
}
