# Set REDIS_URL from the files that the server's job writes, once the server answers. The jobs of workers and producer
# read this in the folder of the run. The password stands in the environment of your processes, and on no command line.
until address=$(cat address 2>/dev/null) && (exec 3<>"/dev/tcp/${address%:*}/${address##*:}") 2>/dev/null; do
  sleep 1
done
REDIS_URL="redis://:$(cat password)@$address/0"
export REDIS_URL
