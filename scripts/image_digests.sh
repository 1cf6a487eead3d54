#!/bin/sh
# Prints every image of docker-compose.yml with the digest that its tag has now, as lines of .env. Usage: image_digests.sh >> .env
# Needs Docker with buildx, and the way to the registries. A tag that is not there fails, with its name.
set -eu

cd "$(dirname "$0")/.."
sed -n 's/.*\${\([A-Z]*_IMAGE\):-\([^}]*\)}.*/\1 \2/p' docker-compose.yml | while read -r name image; do
    digest=$(docker buildx imagetools inspect "$image" --format '{{.Manifest.Digest}}') ||
        { echo "escrow: $image: its digest could not be looked up" >&2; exit 1; }
    echo "$name=$image@$digest"
done
