"""What a household is made of: rooms and their furniture, things and where they lie, what can be done with them.

Names are those of ALFRED, as in ALFWorld's game files. What fits where and what can be cleaned, heated or cooled
follows ALFWorld (MIT licence, envs/alfworld/data/ATTRIBUTION.md); what a room has and where things mostly are is ours.
"""

from __future__ import annotations

ROOMS = ("kitchen", "living room", "bedroom", "bathroom")
SCENES = {"kitchen": 0, "living room": 200, "bedroom": 300, "bathroom": 400}  # numbering of ALFRED's scenes

# fewest and most receptacles of a room, and how many of each kind
FURNITURE = {
    "small": (7, 9, {
        "kitchen": "Fridge 1 Microwave 1 SinkBasin 1 CounterTop 1-2 Cabinet 1-3 Drawer 0-2 DiningTable 0-1 "
        "GarbageCan 0-1 StoveBurner 0-1 CoffeeMachine 0-1 Shelf 0-1",
        "living room": "Sofa 1 CoffeeTable 1 SideTable 1-2 ArmChair 0-1 Drawer 0-3 Shelf 0-2 TVStand 0-1 Dresser 0-1 "
        "GarbageCan 0-1 DiningTable 0-1 Cabinet 0-2",
        "bedroom": "Bed 1 Desk 1 SideTable 1-2 Drawer 1-3 Shelf 0-2 Dresser 0-1 GarbageCan 0-1 Safe 0-1",
        "bathroom": "SinkBasin 1-2 Toilet 1 CounterTop 1 Cabinet 1-3 Drawer 0-1 Shelf 0-2 GarbageCan 0-1 "
        "BathtubBasin 0-1 ToiletPaperHanger 0-1 HandTowelHolder 0-1 TowelHolder 0-1",
    }),
    "full": (12, 28, {
        "kitchen": "Fridge 1 Microwave 1 SinkBasin 1 CoffeeMachine 1 Toaster 1 GarbageCan 1 StoveBurner 4 "
        "CounterTop 1-3 Cabinet 4-9 Drawer 3-7 DiningTable 0-1 SideTable 0-1 Shelf 0-3",
        "living room": "Sofa 1 ArmChair 1-2 CoffeeTable 1-2 SideTable 1-3 TVStand 1 GarbageCan 1 Drawer 2-6 Shelf 0-5 "
        "Cabinet 0-4 Dresser 0-1 DiningTable 0-1 Ottoman 0-1",
        "bedroom": "Bed 1 Desk 1-2 SideTable 1-2 GarbageCan 1 Drawer 3-8 Shelf 2-8 Dresser 0-1 ArmChair 0-1 "
        "LaundryHamper 0-1 Safe 0-1",
        "bathroom": "SinkBasin 1-2 Toilet 1 ToiletPaperHanger 1 GarbageCan 1 CounterTop 1-2 Cabinet 3-6 Drawer 0-4 "
        "Shelf 0-2 BathtubBasin 0-1 TowelHolder 1-2 HandTowelHolder 1-2",
    }),
}  # fmt: skip

THINGS = {
    "kitchen": "Apple Bowl Bread ButterKnife Cup DishSponge Egg Fork Glassbottle Kettle Knife Ladle Lettuce Mug Pan "
    "PepperShaker Plate Pot Potato SaltShaker SoapBottle Spatula Spoon Tomato WineBottle",
    "living room": "Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl Statue TissueBox Vase "
    "Watch WateringCan",
    "bedroom": "AlarmClock BaseballBat BasketBall Book Box CD CellPhone CreditCard KeyChain Laptop Mug Pen Pencil "
    "Pillow Statue TennisRacket TissueBox Watch",
    "bathroom": "Candle Cloth DishSponge HandTowel Plunger SoapBar SoapBottle SprayBottle TissueBox ToiletPaper Towel",
}

# things that stay where they are, in full-size rooms, and what they stand on
FIXTURES = {"HousePlant": "CounterTop SideTable CoffeeTable DiningTable Desk", "Television": "TVStand Dresser"}
LAMP, UNDER_LAMP = "DeskLamp", "Desk SideTable Dresser"
LAMP_ROOMS = ("living room", "bedroom")

ABILITIES = {
    "cleanable": "Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Kettle Knife Ladle Lettuce Mug Pan Plate Pot "
    "Potato SoapBar Spatula Spoon Tomato",
    "heatable": "Apple Bread Cup Egg Mug Plate Potato Tomato",
    "coolable": "Apple Bowl Bread Cup Egg Lettuce Mug Pan Plate Pot Potato Tomato WineBottle",
    "sliceable": "Apple Bread Egg Lettuce Potato Tomato",
    "isReceptacleObject": "Bowl Box Cup Mug Pan Plate Pot",
    "toggleable": LAMP,
}
OPENABLE = "Cabinet Drawer Fridge Microwave Safe"

GROUPS = {
    "food": "Apple Bread Egg Lettuce Potato Tomato",
    "crockery": "Bowl Cup Mug Plate",
    "pans": "Pan Pot",
    "cutlery": "ButterKnife Fork Knife Ladle Spatula Spoon",
    "spices": "PepperShaker SaltShaker",
    "bottles": "Glassbottle WineBottle",
    "pocket": "CreditCard KeyChain",
    "pens": "Pen Pencil",
    "seats": "Box Laptop Pillow RemoteControl Newspaper CreditCard KeyChain",
    "bath": "Candle Cloth HandTowel SoapBar SoapBottle SprayBottle TissueBox ToiletPaper",
}
FITS = {
    "ArmChair": "seats",
    "BathtubBasin": "Cloth DishSponge HandTowel SoapBar",
    "Bed": "BaseballBat BasketBall Book CellPhone Laptop Pillow TennisRacket",
    "Cabinet": "crockery pans spices bottles bath Book DishSponge Kettle Ladle Plunger Vase",
    "CoffeeMachine": "Mug",
    "CoffeeTable": "pocket Box CellPhone Laptop Newspaper Plate RemoteControl Statue WateringCan",
    "CounterTop": "food crockery pans cutlery spices bottles bath Book CellPhone CreditCard DishSponge Kettle Statue "
    "Vase",
    "Desk": "pocket pens AlarmClock BasketBall Book Bowl Box CD CellPhone Cloth Laptop Mug Statue TennisRacket "
    "TissueBox Vase Watch",
    "DiningTable": "food crockery pans cutlery spices pocket Box CellPhone DishSponge Laptop Newspaper RemoteControl "
    "SoapBottle Statue TissueBox Vase WateringCan WineBottle",
    "Drawer": "cutlery spices pocket pens bath Book CD CellPhone DishSponge Newspaper RemoteControl Watch WateringCan",
    "Dresser": "pocket pens AlarmClock BasketBall Book Bowl Box CD CellPhone Cloth Laptop Mug Newspaper Plate "
    "RemoteControl Statue TennisRacket TissueBox Vase Watch WateringCan",
    "Fridge": "food crockery pans bottles",
    "GarbageCan": "food pens CD Cloth DishSponge HandTowel Newspaper SoapBar SoapBottle SprayBottle TissueBox "
    "ToiletPaper WineBottle",
    "HandTowelHolder": "HandTowel",
    "LaundryHamper": "Cloth",
    "Microwave": "food crockery Glassbottle",
    "Ottoman": "seats CellPhone",
    "Safe": "pocket CD CellPhone Statue Vase Watch",
    "Shelf": "crockery spices bottles pocket pens bath AlarmClock Book Box CD CellPhone DishSponge Kettle Newspaper "
    "Pot RemoteControl Statue Vase Watch",
    "SideTable": "food crockery pans cutlery spices pocket pens AlarmClock BaseballBat Book Box CD CellPhone Cloth "
    "DishSponge Kettle Laptop Newspaper RemoteControl SoapBottle Statue TennisRacket TissueBox Vase Watch WateringCan "
    "WineBottle",
    "SinkBasin": "food crockery pans cutlery Cloth DishSponge Glassbottle HandTowel Kettle SoapBar",
    "Sofa": "seats CellPhone",
    "StoveBurner": "pans Kettle",
    "TVStand": "Newspaper RemoteControl Statue TissueBox Vase",
    "Toilet": "bath DishSponge",
    "ToiletPaperHanger": "ToiletPaper",
    "Toaster": "",
    "TowelHolder": "Towel",
}
NOT_IN_MICROWAVE = {"Lettuce"}

# where things of a group are more often than elsewhere
USUAL = {
    "food": "Fridge CounterTop",
    "crockery": "Cabinet Shelf CounterTop",
    "pans": "StoveBurner Cabinet",
    "cutlery": "Drawer CounterTop",
    "pens": "Desk Drawer",
    "bath": "Cabinet CounterTop",
}
USUAL_WEIGHT = 3


def listed(words: str) -> list[str]:
    """The names of a list, groups spelled out."""
    return [name for word in words.split() for name in GROUPS.get(word, word).split()]


def fits(thing: str, receptacle: str) -> bool:
    """Whether a kind of thing can be put into a kind of receptacle."""
    return thing in CAPACITY[receptacle]


def weight(thing: str, receptacle: str) -> int:
    """How often a thing lies in a receptacle, relative to others; 0 where it doesn't fit."""
    usual = any(thing in listed(group) and receptacle in places.split() for group, places in USUAL.items())
    return fits(thing, receptacle) * (USUAL_WEIGHT if usual else 1)


CAPACITY = {receptacle: set(listed(words)) for receptacle, words in FITS.items()}
CAPACITY["Microwave"] -= NOT_IN_MICROWAVE
