# Greets one guest: greet.sh LANGUAGE NAME
case "$1" in
  en) echo "Hello, $2!" ;;
  fr) echo "Bonjour, $2 !" ;;
  *) echo "no greeting in $1" >&2; exit 1 ;;
esac
