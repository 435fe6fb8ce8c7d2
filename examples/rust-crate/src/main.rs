fn main() {
    for word in std::env::args().skip(1) {
        match word.parse().ok().and_then(roman::numeral) {
            Some(text) => println!("{text}"),
            None => eprintln!("{word}: not a number from 1 to 3999"),
        }
    }
}
