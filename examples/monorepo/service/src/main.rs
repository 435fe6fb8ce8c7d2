//! Answers on standard output what a health check would say.

fn status(load: f64) -> &'static str {
    if load < 0.9 { "ok" } else { "busy" }
}

fn main() {
    println!("{{\"status\":\"{}\"}}", status(0.1));
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_loaded_service_says_so() {
        assert_eq!(super::status(0.95), "busy");
    }
}
