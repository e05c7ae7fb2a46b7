"""Makes rayjob_schema.json anew, from the definition of RayJob that KubeRay publishes:

    python tests/config/rayjob_schema.py ray.io_rayjobs.yaml COMMIT

The definition has 1.4 MB. Kept are the names, types and requirements at every level that our manifest reaches.
"""

import json
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).parent
MANIFEST = HERE.parents[1] / "configs" / "clusters" / "kuberay.yaml"
SOURCE = "ray-operator/config/crd/bases/ray.io_rayjobs.yaml of github.com/ray-project/kuberay"
KEPT = ("type", "enum", "required", "pattern", "minimum", "maximum")


def extract(schema, instance):
    """The part of an OpenAPI schema that an instance reaches, as a JSON schema that allows no other names."""
    kept = {key: schema[key] for key in KEPT if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        kept["type"] = ["integer", "string"]
    if isinstance(instance, dict) and "properties" in schema:
        kept["properties"] = {
            name: extract(inner, instance[name]) if name in instance else {}
            for name, inner in schema["properties"].items()
        }
        kept["additionalProperties"] = False
    elif isinstance(instance, dict) and "additionalProperties" in schema:
        kept["additionalProperties"] = extract(schema["additionalProperties"], None)
    elif isinstance(instance, list) and "items" in schema:
        merged = {key: value for item in instance if isinstance(item, dict) for key, value in item.items()}
        kept["items"] = extract(schema["items"], merged or None)
    return kept


def main(definition, commit):
    resource = yaml.safe_load(Path(definition).read_text())
    (version,) = [each for each in resource["spec"]["versions"] if each["name"] == "v1"]
    (job,) = [each for each in yaml.safe_load_all(MANIFEST.read_text()) if each["kind"] == "RayJob"]
    schema = {"$comment": f"{SOURCE}, {commit}, Apache-2.0; made by rayjob_schema.py"}
    schema |= extract(version["schema"]["openAPIV3Schema"], job)
    (HERE / "rayjob_schema.json").write_text(json.dumps(schema) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
